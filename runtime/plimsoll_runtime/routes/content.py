"""Message content as clients write it, a string or a list of parts, made into the one string that templates read.

Owns the joining rule of every route and role: the texts of the parts stand one after another with nothing in between.
In: a JSON value and its wire path. Out: a string; RefusedError for anything that is not text, never a dropped part.
Owns also how the arguments of an earlier tool call reach a template: as a mapping where they are a JSON object.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from plimsoll_runtime.routes.body import refuse
from plimsoll_runtime.routes.intake import MAX_JSON_DEPTH, is_deeper


def join_text(texts: Iterable[str]) -> str:
    """The rule: parts are concatenated as they are, so `["A", "B"]` is the prompt that `"AB"` is."""
    return "".join(texts)


TEXT_ALONE: Final[Mapping[str, str]] = {"text": "text"}


def text_of(content: Any, path: str, kinds: Mapping[str, str] = TEXT_ALONE) -> str:
    """A string, or a list with at least one part. Null and missing are wrong here.

    `kinds`: the types of parts that an API allows in this place -> the field that holds the text of such a part.
    """
    match content:
        case str():
            return content
        case None:
            raise refuse("missing_required_parameter", f"{path} is required: give a string or a list of parts", path)
        case []:
            raise refuse("invalid_value", f"{path} is an empty list: give at least one part, or a string", path)
        case list():
            return join_text(_text_of_part(part, f"{path}.{index}", kinds) for index, part in enumerate(content))
    raise refuse("invalid_type", f"{path} must be a string or a list of parts", path)


def _text_of_part(part: Any, path: str, kinds: Mapping[str, str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise refuse("invalid_type", f"{path} must be an object with a type", path)
    if kind not in kinds:
        raise refuse("unsupported_parameter", f"{path}: parts of type {kind!r:.40} are not supported, send text", path)
    text = part.get(kinds[kind])
    if not isinstance(text, str):
        where = f"{path}.{kinds[kind]}"
        raise refuse("invalid_type", f"{where} must be a string", where)
    return text


def call_arguments(text: str, path: str) -> Mapping[str, Any] | str:
    """Arguments of an earlier call: the mapping that `text` holds as JSON within the bounds of a body, else `text`.

    Templates iterate over the mapping or print it as JSON, so one level of quoting stays one level.
    """
    try:
        value = json.loads(text, parse_constant=_not_json)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise refuse("invalid_value", f"{path} contains an unpaired surrogate escape", path) from None
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) and not is_deeper(value, MAX_JSON_DEPTH) else text


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
