"""What a bulk job shows: a bar while it runs, and a summary when it ends.

Owns counts and their wording. In: answers, one after the other. It decides nothing. Tokens come from `usage` in any of
the four dialects; what was granted comes from the budget's headers.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from plimsoll_runtime.bulk.server import Answered
from plimsoll_runtime.contract import endpoints

BAR_WIDTH = 40


@dataclass(slots=True)
class Tally:
    """Counts of this run; `lengths` holds the output tokens of every success, by power of two."""

    answered: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    output_tokens: int = 0
    limited_by: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    cut_off: int = 0
    sent_again: int = 0

    def add(self, answer: Answered) -> None:
        if answer.status != 200:
            self.refused[str(answer.error.get("code", f"status {answer.status}"))] += 1
            return
        prompt_tokens, output_tokens = used_tokens(answer.body)
        self.answered += 1
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.lengths[output_tokens.bit_length()] += 1
        granted = answer.headers.get(endpoints.HEADER_MAX_OUTPUT_TOKENS)
        self.limited_by[answer.headers.get(endpoints.HEADER_LIMITED_BY, "not said")] += 1
        self.cut_off += granted is not None and granted == str(output_tokens)

    def line(self, seconds: float) -> str:
        """What stands beside the bar."""
        rate = self.output_tokens / seconds if seconds > 0 else 0.0
        granted = ", ".join(f"{name} {count:,}" for name, count in self.limited_by.most_common())
        refused = sum(self.refused.values())
        return f"{rate:,.0f} tok/s, {self.output_tokens:,} tokens, granted by {granted or '-'}, refused {refused:,}"

    def summary(self, seconds: float) -> str:
        """Lines of text: counts, tokens, what limited the answers, and how long they were."""
        rate = self.output_tokens / seconds if seconds > 0 else 0.0
        lines = [
            f"answered       {self.answered:,} in {seconds:,.1f} s; sent again {self.sent_again:,} times",
            f"tokens         {self.prompt_tokens:,} of prompts, {self.output_tokens:,} of output: {rate:,.0f} tok/s",
            f"granted by     {_counts(self.limited_by)}",
            f"at the grant   {self.cut_off:,} answers used all that they were granted",
        ]
        if self.refused:
            lines.append(f"refused        {_counts(self.refused)}")
        return "\n".join([*lines, *self._histogram()])

    def _histogram(self) -> list[str]:
        if not self.lengths:
            return []
        most = max(self.lengths.values())
        rows = ["output tokens  answers"]
        for bits in range(min(self.lengths), max(self.lengths) + 1):
            count = self.lengths[bits]
            low, high = (1 << bits) >> 1, (1 << bits) - 1
            name = f"{low:,}" if low >= high else f"{low:,}-{high:,}"
            rows.append(f"{name:<14} {count:>7,} {'#' * -(-count * BAR_WIDTH // most)}".rstrip())
        return rows


def used_tokens(body: Any) -> tuple[int, int]:
    """Prompt and output tokens of an answer; 0 where it does not say."""
    usage = body.get("usage") if isinstance(body, dict) else None
    if not isinstance(usage, Mapping):
        return 0, 0
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0))
    output = usage.get("completion_tokens", usage.get("output_tokens", 0))
    return int(prompt), int(output)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common()) or "-"
