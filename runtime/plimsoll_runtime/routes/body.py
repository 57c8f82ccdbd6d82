"""Reading a client's JSON body: shapes with pydantic, and what to say when a shape is wrong.

Owns the one translation from a pydantic error to a `Refusal` (code, sentence, wire path of the field) and the rule for
fields that are documented by an API and not built here: the API's own default is accepted, any other value is a 400
naming the field. Unknown fields are accepted and reported by name so that they can be counted. Numbers of the budget
and of sampling pass through raw as `WireValue`: admission judges them.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from plimsoll_runtime.refusal import Refusal, RefusalCode
from plimsoll_runtime.request import WireValue


class WireModel(BaseModel):
    """A shape of a foreign API: strict types, unknown fields kept (pydantic's `model_extra`)."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", arbitrary_types_allowed=True)


class RefusedError(Exception):
    """Carries a Refusal up to `refusing`; it never leaves a converter."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")

_CODES: Mapping[str, RefusalCode] = {"missing": "missing_required_parameter"}


def refusing(convert: Callable[..., Result]) -> Callable[..., Result | Refusal]:
    """Makes a converter that raises RefusedError deep inside one that returns the Refusal."""

    def converted(*arguments: Any, **named: Any) -> Result | Refusal:
        try:
            return convert(*arguments, **named)
        except RefusedError as refused:
            return refused.refusal

    return converted


def refuse(code: RefusalCode, message: str, param: str | None) -> RefusedError:
    """The exception to raise: `raise refuse(...)`."""
    return RefusedError(Refusal(code=code, message=message, param=param))


def read(model: type[Model], body: Any, path: str = "") -> Model:
    """`body` in the shape of `model`. Raises RefusedError for the first thing wrong, with its path below `path`."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RefusedError(_refusal_of(error, path)) from None


def _refusal_of(error: ValidationError, path: str) -> Refusal:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = ".".join([path] * bool(path) + [str(part) for part in first["loc"] if not _is_union_tag(part)])
    kind = first["type"]
    is_type = kind.endswith("_type") or kind == "union_tag_invalid"
    code = _CODES.get(kind, "invalid_type" if is_type else "invalid_value")
    message = first["msg"].removeprefix("Value error, ")
    return Refusal(code=code, message=f"{param or 'the body'}: {message}", param=param or None)


def _is_union_tag(part: str | int) -> bool:
    """Pydantic names the member of a union in the path (`str`, `list[...]`); a client knows no such name."""
    return isinstance(part, str) and (part in {"str", "dict", "list", "int"} or "[" in part or "function-" in part)


def wire_values(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, WireValue]:
    """`{our name: value as sent}` for those of `names` (wire name -> our name) that the body has and are not null."""
    return {ours: WireValue(param=wire, value=body[wire]) for wire, ours in names.items() if body.get(wire) is not None}


def refuse_unsupported(body: Mapping[str, Any], accepted: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises for a documented field that would change the answer and is not built.

    `accepted`: field -> the values that mean the API's own default; null and absent always pass.
    """
    for name, defaults in accepted.items():
        value = body.get(name)
        if value is None or any(value == default and type(value) is type(default) for default in defaults):
            continue
        raise refuse("unsupported_parameter", f"{name} is not supported by this server: leave it out", name)


def read_switch(body: Mapping[str, Any], name: str, *, default: bool = False, path: str = "") -> bool:
    """A boolean that is the default where it is absent or null. `path`: where `body` lies in the whole."""
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    where = f"{path}.{name}" if path else name
    raise refuse("invalid_type", f"{where} must be true or false", where)


def unknown_fields(body: Mapping[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    """Names in the body that are in no list of ours, in the order sent."""
    known_names = frozenset(known)
    return tuple(name for name in body if name not in known_names)
