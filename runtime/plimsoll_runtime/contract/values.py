"""Kinds of values that settings have, beyond plain numbers and texts: words, durations, amounts, weights of tenants.

Owns how a value is read and spelt, as a flag and in a manifest. It knows no setting. Invariant: what cannot be read is
left as it was given, so that its refusal shows it.
"""

import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from plimsoll_runtime.contract.quantity import BYTES_PATTERN, amount


def word(choices: Any) -> BeforeValidator:
    """Words are matched without regard to case, as flags or as manifests spell them: `ApiKey` is `api-key` here."""
    known = {spelling: word for word in get_args(choices) for spelling in spellings(word)}
    return BeforeValidator(lambda value: known.get(value.lower(), value) if isinstance(value, str) else value)


def spellings(word: str) -> tuple[str, ...]:
    """In small letters, what stands for a word of the contract: as on the command line, and as in a manifest."""
    return tuple(dict.fromkeys((word, word.replace("-", ""))))


def _bytes_of(value: Any) -> Any:
    """`4Gi` as whole bytes; what is no amount is left to be refused."""
    exact = amount(value) if isinstance(value, str) and re.match(BYTES_PATTERN, value) else None
    return value if exact is None else int(exact)


Text = Annotated[str, Field(min_length=1)]
Device = Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")]
Seconds = Annotated[float, Field(gt=0, le=86_400 * 7, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0, le=2**60, strict=True), BeforeValidator(_bytes_of)]
Weight = Annotated[int, Field(ge=1, le=1000, strict=True)]


class TenantWeight(BaseModel):
    """The share of one tenant against the others, who weigh 1. A key never stands in a manifest, only its hash."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenant: Annotated[
        str,
        Field(
            pattern=r"^[0-9a-f]{8,64}$",
            max_length=64,
            description="The first 8 to 64 hexadecimal digits of the SHA-256 of its API key.",
        ),
    ]
    weight: Annotated[Weight, Field(description="Its share; a tenant that is not listed weighs 1.")]

    def __str__(self) -> str:
        """As a flag spells it."""
        return f"{self.tenant}={self.weight}"


def value_text(value: Any) -> str:
    """A value as a flag takes it: whole seconds without a decimal point, a list with commas, other numbers exactly."""
    if isinstance(value, tuple):
        return ",".join(map(value_text, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
