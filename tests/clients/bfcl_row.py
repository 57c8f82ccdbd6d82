"""The unmodified command line of `bfcl-eval`, with rows for our model in its table, asked by function calls.

Runs in the client's own environment (see bfcl.py), which has nothing of this project. `BFCL_MODEL` is the model's name.
"""

import os

from bfcl_eval.__main__ import cli
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.model_handler.api_inference.claude import ClaudeHandler
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.model_handler.api_inference.openai_response import OpenAIResponsesHandler

HANDLERS = {"chat": OpenAICompletionsHandler, "responses": OpenAIResponsesHandler, "messages": ClaudeHandler}

if __name__ == "__main__":
    for route, handler in HANDLERS.items():
        name = f"{os.environ['BFCL_MODEL']}-{route}-FC"
        MODEL_CONFIG_MAPPING[name] = ModelConfig(
            model_name=os.environ["BFCL_MODEL"],
            display_name=name,
            url="-",
            org="-",
            license="-",
            model_handler=handler,
            is_fc_model=True,
            underscore_to_dot=True,
        )
    cli()
