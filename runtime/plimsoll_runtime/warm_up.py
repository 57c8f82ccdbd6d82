"""One token before the first client: a server is ready when it has answered once.

Owns the warm-up request. In: an engine whose thread has not started yet. It goes through admission and the engine like
any other, but waits as long as it takes, and leaves no trace in the metrics. Raises StartError when no token comes out.
"""

import math

from plimsoll_runtime.admission.admit import Admission
from plimsoll_runtime.admission.checks import CheckedFields
from plimsoll_runtime.admitted import AdmittedRequest
from plimsoll_runtime.contract.endpoints import COMPLETIONS
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.engine.engine import Engine
from plimsoll_runtime.events import Failed, Token
from plimsoll_runtime.request import GenerationRequest, TokenPrompt, WireValue


def warm_up(engine: Engine, admission: Admission) -> None:
    """Computes one token, slowly: off the event loop, before the engine's thread starts."""
    engine.submit(_one_token(admission))
    while engine.has_work():
        for event in engine.step():
            if isinstance(event, Failed):
                raise StartError(f"the model cannot compute its first token: {event.message}")
            if isinstance(event, Token):
                return
    raise AssertionError("a request that never expires ends with a token or a failure")


def _one_token(admission: Admission) -> AdmittedRequest:
    request = GenerationRequest(
        route=COMPLETIONS,
        model=admission.model.name,
        prompt_param="prompt",
        prompts=(TokenPrompt((0,)),),
        wire={"requested_output_tokens": WireValue("max_tokens", 1)},
    )
    checked = admission.check(request)
    assert isinstance(checked, CheckedFields), checked
    never = admission.times(request, checked, math.inf)
    admitted = admission.admit(request, checked, request_id="warm-up", tenant="", times=never)
    assert isinstance(admitted, AdmittedRequest), admitted
    return admitted
