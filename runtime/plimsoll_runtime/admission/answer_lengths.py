"""How long answers become: a survival curve for each route and tenant, learnt from the answers that ended.

Owns the histograms. In: how many tokens an answer had, and whether it ended by itself or was cut. Out: a `LengthCurve`
to draw from. It knows no time and no queue. The estimate is Kaplan and Meier's, over buckets that grow by the half of a
doubling: of those that reached a bucket, the share that ended in it. So an answer that was cut tells what it can, that
it was longer; and the longer an answer has been, the longer it is expected to go on. Who has few answers borrows the
curve of all, and all begin with a guess that takes every length for likely.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from plimsoll_runtime.contract.endpoints import Route

Floats = npt.NDArray[np.float64]

PARTS = 2
"""Buckets to each doubling. One was tried: lengths are not even within it, and waits came out 7 % too long."""
NUM_BUCKETS = 32 * PARTS
"""Bucket b holds the lengths from 2**(b / PARTS) up to the next edge."""
MAX_CURVES = 1024
"""The curves used last are kept, so that strangers cannot fill the memory."""
FORGETTING = 1 / 512
"""Share of the past that each new answer displaces."""
BORROWED_ANSWERS = 4.0
"""So many answers of the wider group count for one's own."""
FIRST_GUESS = 0.1
"""Share of answers that end in each bucket, before any has."""

_EDGES: Floats = np.exp2(np.arange(NUM_BUCKETS + 1) / PARTS)


@dataclass(slots=True)
class _Histogram:
    """Weights of answers by bucket: how many came into it, and how many ended in it by themselves."""

    reached: Floats = field(default_factory=lambda: np.zeros(NUM_BUCKETS))
    ended: Floats = field(default_factory=lambda: np.zeros(NUM_BUCKETS))

    def add(self, output_tokens: int, by_itself: bool) -> None:
        self.reached *= 1 - FORGETTING
        self.ended *= 1 - FORGETTING
        bucket = min(int(PARTS * math.log2(output_tokens)), NUM_BUCKETS - 1)
        self.reached[:bucket] += 1
        # An answer that was cut was in its last bucket for a part of it: half, for want of more.
        self.reached[bucket] += 1 if by_itself else 0.5
        self.ended[bucket] += by_itself

    def share_ended(self, borrowed: Floats) -> Floats:
        """Of those that reached each bucket, the share that ended in it."""
        return (self.ended + BORROWED_ANSWERS * borrowed) / (self.reached + BORROWED_ANSWERS)


class LengthCurve:
    """Draws whole lengths of answers, given how long they are already; within a bucket all lengths are as likely."""

    def __init__(self, share_ended: Floats) -> None:
        """`share_ended` [NUM_BUCKETS], each in 0..1."""
        self._survival: Floats = np.concatenate(([1.0], np.cumprod(1 - np.minimum(share_ended, 0.999))))

    def draw(self, output_tokens: int, most: float, uniforms: Floats) -> Floats:
        """Lengths of an answer that has `output_tokens` and ends at `most`, one for each number in 0..1."""
        still = np.interp(output_tokens, _EDGES, self._survival)
        return np.minimum(np.interp(-still * uniforms, -self._survival, _EDGES), most)


class AnswerLengths:
    """What was learnt so far, of each (route, tenant) and of all. Used from the event loop's thread alone."""

    def __init__(self) -> None:
        self._all = _Histogram()
        self._of: OrderedDict[tuple[Route, str], _Histogram] = OrderedDict()

    def learn(self, route: Route, tenant: str, output_tokens: int, *, by_itself: bool) -> None:
        """An answer ended after `output_tokens`, by itself or because something else cut it."""
        if output_tokens < 1:
            return
        own = self._of.setdefault((route, tenant), _Histogram())
        self._of.move_to_end((route, tenant))
        if len(self._of) > MAX_CURVES:
            self._of.popitem(last=False)
        for histogram in (self._all, own):
            histogram.add(output_tokens, by_itself)

    def curve(self, route: Route, tenant: str) -> LengthCurve:
        """What is to be expected of this tenant on this route."""
        of_all = self._all.share_ended(np.full(NUM_BUCKETS, FIRST_GUESS))
        own = self._of.get((route, tenant))
        return LengthCurve(of_all if own is None else own.share_ended(of_all))
