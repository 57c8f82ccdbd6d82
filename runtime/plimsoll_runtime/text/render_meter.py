"""What one rendering of a chat template may cost: steps, characters made, and time.

Owns the three counts and their limits. In: charges, from sandbox.py. Out: nothing, or `RenderLimitExceeded`. It does
not know Jinja's syntax. Invariant: each charge is paid before the work where its size can be told before, so that a
template cannot make a value much larger than the limit.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

MAX_STEPS = 1_000_000
"""Loop rounds, calls, filters and items read: ordinary templates take some dozens for each message."""

MAX_EXTRA_OUTPUT = 4 * 1024 * 1024
"""Characters that a rendering may have beyond those of its input."""

MAX_MADE = 16 * 1024 * 1024
"""Characters that all intermediate texts together may have, and `MADE_PER_INPUT` more for each of the input."""

MADE_PER_INPUT = 32

MAX_SECONDS = 10.0
"""For what steps do not see, such as searching one long text in another again and again."""

MAX_INTEGER_BITS = 4096


class RenderLimitExceeded(SecurityError):
    """The template does more work than any honest one needs."""


class RenderMeter:
    """Made anew for each rendering."""

    def __init__(self, input_size: int, clock: Callable[[], float]) -> None:
        """`input_size` in characters; `clock` in seconds."""
        self._clock = clock
        self._end = clock() + MAX_SECONDS
        self._steps_left = MAX_STEPS
        self._made_left = MAX_MADE + MADE_PER_INPUT * input_size
        self.max_output = input_size + MAX_EXTRA_OUTPUT

    def step(self, steps: int = 1, made: int = 0) -> None:
        """Charge `steps` steps and `made` characters."""
        self._steps_left -= steps
        self._made_left -= made
        if self._steps_left < 0:
            raise RenderLimitExceeded(f"it takes more than {MAX_STEPS:,} steps")
        if self._made_left < 0:
            raise RenderLimitExceeded(f"it makes more than {MAX_MADE:,} characters beyond its input")
        if self._clock() > self._end:
            raise RenderLimitExceeded(f"it takes longer than {MAX_SECONDS:g} seconds")

    def value(self, value: Any) -> Any:
        """Charge one step and the size of a value that was made, and give it back."""
        if isinstance(value, str):
            self.step(made=len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.step(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise RenderLimitExceeded(f"it computes an integer of more than {MAX_INTEGER_BITS:,} bits")
        else:
            self.step()
        return value

    def contents(self, value: Any) -> None:
        """Charge for everything that printing the value would print; a value inside it twice is charged twice."""
        if isinstance(value, str):
            self.step(made=len(value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.contents(key)
                self.contents(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.contents(item)
        else:
            self.step()

    def items(self, values: Iterable[Any]) -> Iterator[Any]:
        """The same values, one step charged for each as it is read."""
        for value in values:
            self.step()
            yield value
