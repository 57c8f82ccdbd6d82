"""How the next token is chosen: for each row alone, whatever shares its batch.

In: raw logits, and the sequences that they belong to. Out: one outcome per row. It owns no state: the draw is a
function of (seed, choice, position), so it is the same alone, in a batch, after a preemption and after a restart.
Shapes: N rows, V addressable token ids (padding rows of the embedding are cut off first and can never be chosen).

The order: repetition penalty (prompt and output), presence and frequency penalties (output), bias, what the sequence's
rule forbids, ban of end tokens, temperature, top_k, top_p, min_p. At least one candidate always remains. Temperature 0
takes the highest score after the ban, the lowest id among equals.
"""

import math
import struct
from collections.abc import Sequence as Items
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import torch

from plimsoll_runtime.admitted import Sampling
from plimsoll_runtime.engine.logprobs import Ids, likeliest, token_logprobs
from plimsoll_runtime.engine.sequence import Sequence
from plimsoll_runtime.events import FailureCode, TokenLogprobs
from plimsoll_runtime.token_rules import RuleFailure

Scores = npt.NDArray[np.float64]

NON_FINITE_MESSAGE = "the model computed scores that are not finite numbers for this request"

NONE_POSSIBLE_MESSAGE = "every token that may be written next is banned until min_tokens, or cannot be written at all"

_FIRST_NUCLEUS_CANDIDATES = 128
"""Most nuclei are small: so many ids are sorted first, eight times as many after each miss."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The token that was chosen."""

    token_id: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class NotSampled:
    """Why nothing could be chosen: a sentence for the request's failure, and whose fault it is."""

    message: str
    code: FailureCode = "engine_failure"


Outcome = Sampled | NotSampled


def sample(logits_NV: torch.Tensor, sequences: Items[Sequence]) -> list[Outcome]:
    """One outcome per row of float32 logits, already cut to the addressable ids.

    All rows are checked and maximised in one pass; only rows that want more than the maximum are looked at singly.
    """
    best_N, best_ids_N = logits_NV.max(dim=-1)
    outcomes: list[Outcome] = []
    rows = zip(best_N.tolist(), best_ids_N.tolist(), sequences, strict=True)
    for row, (best, best_id, sequence) in enumerate(rows):
        if not math.isfinite(best):
            # The maximum is NaN when any logit is, and infinite when one is, or when none is possible.
            outcomes.append(NotSampled(NON_FINITE_MESSAGE))
        elif sequence.rule is None and _takes_the_maximum(sequence):
            outcomes.append(Sampled(best_id))
        else:
            outcomes.append(_sample_row(logits_NV[row].cpu().numpy(), sequence))
    return outcomes


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, a function of its arguments alone on every machine."""
    digest = blake2b(struct.pack("<qqq", seed, choice, position), digest_size=8).digest()
    return float((int.from_bytes(digest, "little") >> 11) * 2.0**-53)


def draw(scores_V: Scores, sampling: Sampling, uniform_number: float) -> int:
    """A token id, by its share of the candidates. `scores_V` holds at least one finite score, and no NaN."""
    ids, weights = _candidates(scores_V, sampling)
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, uniform_number * cumulative[-1], side="right"))
    if index == len(cumulative):
        # Rounding reached past the end: the last candidate with any weight is meant.
        index = int(np.flatnonzero(weights)[-1])
    return index if ids is None else int(ids[index])


def _takes_the_maximum(sequence: Sequence) -> bool:
    sampling, request = sequence.request.sampling, sequence.request
    return (
        sampling.temperature == 0
        and request.logprobs is None
        and not sampling.logit_bias
        and not _has_penalties(sampling)
        and not _bans(sequence)
    )


def _has_penalties(sampling: Sampling) -> bool:
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


def _bans(sequence: Sequence) -> bool:
    return sequence.output_tokens < sequence.request.min_tokens and bool(sequence.request.banned_until_min_tokens)


def _sample_row(logits_V: npt.NDArray[np.float32], sequence: Sequence) -> Outcome:
    request, sampling = sequence.request, sequence.request.sampling
    scores_V = _processed(logits_V, sequence)
    try:
        allowed_V = None if sequence.rule is None else sequence.rule.allowed()
    except RuleFailure as failure:
        return NotSampled(str(failure), "invalid_value")
    if allowed_V is not None:
        scores_V[~allowed_V] = -np.inf
    if not np.isfinite(scores_V.max()):
        return NotSampled(NONE_POSSIBLE_MESSAGE)
    if sampling.temperature == 0:
        token_id = int(scores_V.argmax())
    else:
        token_id = draw(scores_V, sampling, uniform(sampling.seed, sequence.choice, sequence.output_tokens))
    if request.logprobs is None:
        return Sampled(token_id)
    return Sampled(token_id, token_logprobs(logits_V[None], [token_id], request.logprobs)[0])


def _processed(logits_V: npt.NDArray[np.float32], sequence: Sequence) -> Scores:
    """A float64 copy of the logits after penalties, bias and ban."""
    scores_V = logits_V.astype(np.float64)
    sampling = sequence.request.sampling
    if sampling.repetition_penalty != 1:
        _penalize_repetition(scores_V, np.unique(np.array(sequence.token_ids)), sampling.repetition_penalty)
    if sequence.output_counts and (sampling.presence_penalty != 0 or sampling.frequency_penalty != 0):
        ids = np.array(list(sequence.output_counts))
        counts = np.array(list(sequence.output_counts.values()))
        scores_V[ids] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    for token_id, bias in sampling.logit_bias.items():
        scores_V[token_id] += bias
    if _bans(sequence):
        scores_V[list(sequence.request.banned_until_min_tokens)] = -np.inf
    return scores_V


def _penalize_repetition(scores_V: Scores, ids: Ids, penalty: float) -> None:
    """Divides what is likely and multiplies what is not, so that both become less likely (CTRL, section 4.1)."""
    scores = scores_V[ids]
    scores_V[ids] = np.where(scores > 0, scores / penalty, scores * penalty)


def _candidates(scores_V: Scores, sampling: Sampling) -> tuple[Ids | None, Scores]:
    """Ids (None: all, in order) and their weights, not normalised, after temperature, top_k, top_p and min_p."""
    with np.errstate(over="ignore", under="ignore"):
        weights_V = np.exp((scores_V - scores_V.max()) / sampling.temperature)
    ids: Ids | None = None
    if 0 < sampling.top_k < len(scores_V):
        ids = likeliest(scores_V, sampling.top_k)
    if sampling.top_p < 1:
        ids = _nucleus(weights_V, ids, sampling.top_p)
    weights = weights_V if ids is None else weights_V[ids]
    if sampling.min_p > 0:
        # The likeliest weighs exactly 1, so it stays whatever min_p is.
        weights = np.where(weights >= min(sampling.min_p, 1.0), weights, 0.0)
    return ids, weights


def _nucleus(weights_V: Scores, ids: Ids | None, top_p: float) -> Ids:
    """The fewest likeliest ids whose share reaches `top_p`; always at least one. `ids` come best first."""
    total = weights_V.sum() if ids is None else weights_V[ids].sum()
    count = _FIRST_NUCLEUS_CANDIDATES
    while True:
        best = likeliest(weights_V, count) if ids is None else ids
        cumulative = np.cumsum(weights_V[best])
        if ids is not None or len(best) == len(weights_V) or cumulative[-1] >= top_p * total:
            before = cumulative - weights_V[best]
            keep = max(1, int(np.count_nonzero(before < top_p * total)))
            return best[:keep]
        count *= 8
