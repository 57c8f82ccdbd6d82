"""Admitted requests for tests of the engine: budgets come from the law itself, everything else has a plain default."""

from collections.abc import Mapping, Sequence
from typing import Any

from plimsoll_runtime.admission.budget import decide_budget
from plimsoll_runtime.admitted import AdmittedPrompt, AdmittedRequest, Budget, Sampling
from plimsoll_runtime.contract.config import DEFAULT_MAX_OUTPUT_TOKENS, Limits

PLAIN_SAMPLING: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": {},
    "seed": 0,
}
PLAIN_REQUEST: Mapping[str, Any] = {
    "route": "/v1/chat/completions",
    "tenant": "",
    "num_choices": 1,
    "stop_token_ids": frozenset(),
    "banned_until_min_tokens": frozenset(),
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "queue_deadline": 1e9,
    "deadline": 1e9,
    "deadline_action": "finish",
    "tenant_weight": 1,
    "stop_on_runaway": False,
}


def admitted(
    request_id: str,
    *prompts: Sequence[int],
    max_output_tokens: int | None = None,
    context_length: int = 64,
    **values: Any,
) -> AdmittedRequest:
    """A request that admission would let in; `values` are fields of `AdmittedRequest` or of `Sampling`."""
    limits = Limits(context_length, min(DEFAULT_MAX_OUTPUT_TOKENS, context_length), None, "clamp")
    sampling = {name: values.pop(name, default) for name, default in PLAIN_SAMPLING.items()}
    return AdmittedRequest(
        request_id=request_id,
        prompts=tuple(
            AdmittedPrompt(tuple(prompt), _budget(len(prompt), max_output_tokens, limits)) for prompt in prompts
        ),
        sampling=Sampling(**sampling),
        **{**PLAIN_REQUEST, **values},
    )


def _budget(prompt_tokens: int, max_output_tokens: int | None, limits: Limits) -> Budget:
    budget = decide_budget(prompt_tokens, max_output_tokens, limits)
    assert isinstance(budget, Budget), budget
    return budget
