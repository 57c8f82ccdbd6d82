"""Which turns of a conversation are left out so that the rest fits: `truncation: auto` of responses.

Owns the choice, and nothing is left out that need not be. In: a chat prompt, and how to tell whether one fits. Out: the
prompt without as few of its oldest turns as that needs, or with its last turn alone. A turn begins with a message of
the user, so a call of a tool leaves together with its result; the instructions in front always stay. It counts no
tokens itself.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plimsoll_runtime.request import ChatPrompt


def without_oldest_turns(prompt: ChatPrompt, fits: Callable[[ChatPrompt], bool]) -> ChatPrompt:
    """`fits` is asked for the logarithm of the number of turns, never for the whole prompt: that is too long."""
    first = _num_instructions(prompt.messages)
    begins = [index for index, message in enumerate(prompt.messages) if message["role"] == "user"]
    shorter = [
        replace(prompt, messages=(*prompt.messages[:first], *prompt.messages[begin:]))
        for begin in begins
        if begin > first
    ]
    if not shorter:
        return prompt
    return shorter[min(bisect_left(shorter, True, key=fits), len(shorter) - 1)]


def _num_instructions(messages: Sequence[Mapping[str, Any]]) -> int:
    others = (index for index, message in enumerate(messages) if message["role"] != "system")
    return next(others, len(messages))
