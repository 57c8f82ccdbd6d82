"""What a chat template is told besides the messages: whether to think and how hard, then the client's own values.

In: `chat_template_kwargs` as it was sent, and what the API's own fields asked for. Out: the template arguments, or
RefusedError naming the argument. It knows no template: an effort is advice, which a template that knows the word passes
on. Sources: the extension of that name in vLLM and SGLang; the efforts of OpenAI's and Anthropic's APIs.
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.routes.body import refuse

FIELD: Final = "chat_template_kwargs"
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NO_EFFORT: Final = "none"
OWNED_BY_SERVER: Final = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self"})


def read_effort(value: Any, param: str) -> str | None:
    """An effort as it was sent, None where none was."""
    if value is not None and value not in EFFORTS:
        raise refuse("invalid_value", f"{param} must be one of {', '.join(EFFORTS)}, not {value!r:.40}", param)
    return None if value is None else str(value)


def asked_by(effort: str | None) -> dict[str, Any]:
    """The arguments that an effort stands for."""
    if effort is None:
        return {}
    if effort == NO_EFFORT:
        return {"enable_thinking": False}
    return {"enable_thinking": True, "reasoning_effort": effort}


def template_arguments(body: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """`asked`: what fields of the API itself asked for; the client's own argument wins over it."""
    own = body.get(FIELD)
    if own is None:
        own = {}
    if not isinstance(own, dict):
        raise refuse("invalid_type", f"{FIELD} must be an object", FIELD)
    for name in own:
        if name in OWNED_BY_SERVER:
            raise refuse("invalid_value", f"{FIELD}.{name} is set by the server: leave it out", f"{FIELD}.{name}")
    if not isinstance(own.get("enable_thinking", True), bool):
        raise refuse("invalid_type", f"{FIELD}.enable_thinking must be true or false", f"{FIELD}.enable_thinking")
    return {**asked, **own}
