"""What a chat template is told besides the messages: thinking off where a field says so, then the client's own values.

In: `chat_template_kwargs` as it was sent. Out: the template arguments, or RefusedError naming the argument. It knows no
template. Source: the extension of that name in vLLM and SGLang.
"""

from collections.abc import Mapping
from typing import Any, Final

from plimsoll_runtime.routes.body import refuse

FIELD: Final = "chat_template_kwargs"
OWNED_BY_SERVER: Final = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self"})


def template_arguments(body: Mapping[str, Any], *, thinks_not: bool) -> dict[str, Any]:
    """`thinks_not`: a field of the API itself turned thinking off; the client's own argument wins over it."""
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
    return ({"enable_thinking": False} if thinks_not else {}) | own
