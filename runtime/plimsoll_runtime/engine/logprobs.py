"""Natural log probabilities under the model's own distribution, each number finite.

In: rows of raw logits. Out: `TokenLogprobs`. It knows no sequences. Shapes: N rows, V token ids. Invariant: computed in
float64 from the logits before temperature, penalties and bias; nothing infinite is ever reported, because JSON has no
word for it.
"""

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt

from plimsoll_runtime.events import TokenLogprobs

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

LOWEST_LOGPROB = -9999.0
"""Stands for a probability of zero where a token must be reported, as OpenAI's reference and vLLM have it."""


def token_logprobs(logits_NV: Floats, token_ids: Items[int], num_top: int) -> list[TokenLogprobs]:
    """For each row the logprob of its token, and of the `num_top` likeliest ids (those that are possible at all)."""
    reports: list[TokenLogprobs] = []
    for row_V, token_id in zip(logits_NV, token_ids, strict=True):
        log_total = _log_sum_exp(row_V)
        chosen = max(float(row_V[token_id]) - log_total, LOWEST_LOGPROB)
        ids = likeliest(row_V, num_top) if num_top else ()
        top = tuple((int(i), max(float(row_V[i]) - log_total, LOWEST_LOGPROB)) for i in ids if np.isfinite(row_V[i]))
        reports.append(TokenLogprobs(chosen, top))
    return reports


def likeliest(scores_V: Floats, count: int) -> Ids:
    """The `count` ids with the highest scores, best first; of equal scores the lowest ids."""
    if count >= len(scores_V):
        return np.argsort(-scores_V, kind="stable")
    threshold = np.partition(scores_V, -count)[-count]
    above = np.flatnonzero(scores_V > threshold)
    equal = np.flatnonzero(scores_V == threshold)[: count - len(above)]
    ids = np.concatenate([above, equal])
    return ids[np.lexsort((ids, -scores_V[ids]))]


def _log_sum_exp(row_V: Floats) -> float:
    highest = float(row_V.max())
    return highest + float(np.log(np.exp(row_V.astype(np.float64) - highest).sum()))
