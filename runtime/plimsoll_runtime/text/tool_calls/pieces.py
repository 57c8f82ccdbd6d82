"""What a model's answer is made of once its tool calls are told apart: the words of every tool-call parser.

Invariants: `CallEnded` follows its `CallBegun` with nothing but `CallArguments` between; a call that is begun and never
ended is incomplete (the text was cut, or went wrong), and only those that ended are calls.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The model calls `name`, as it wrote the name."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments: pieces of one JSON object, each the beginning of what is still valid."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The arguments are complete."""


Piece = Content | CallBegun | CallArguments | CallEnded
