"""Chooses the scores at which a cascade asks its large model.

The cascade then rarely disagrees with it. The order of the bands comes from one half of the texts.
The other half tests them in this order, up to the first band that may disagree too often: split
fixed-sequence testing of Angelopoulos et al. 2021, "Learn then Test" (arXiv:2110.01052).
"""

import math
import sys
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.algorithms.cascade import Band

# The probability that a share is below its 95 % interval, and that it is above it.
_TAIL = 0.025
_DECIMALS = 6
_MOST_BANDS = 200
# Shares of the widest band without a disagreement; they give safer bands.
_WIDER = (0.25, 0.5, 0.75)
Interval = tuple[float, float]


class Judged(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the small model's scores of texts, and which decisions differ from the large model's.

    The small model decides by whether the score reaches `middle`. Every band contains `middle`.
    """

    scores: NDArray[np.float64]
    differs: NDArray[np.bool_]
    middle: float

    def halves(self) -> "tuple[Judged, Judged]":
        """Return two random halves."""
        order = np.random.default_rng(0).permutation(len(self.scores))
        return self._take(order[::2]), self._take(order[1::2])

    def _take(self, places: NDArray[np.intp]) -> "Judged":
        return msgspec.structs.replace(
            self, scores=self.scores[places], differs=self.differs[places]
        )

    def point(self, band: Band) -> "Point":
        """Return how often a cascade with a band asks the large model, and disagrees with it."""
        low, high = band
        below = self.scores < low
        sure = below | (self.scores >= high)
        return Point(
            band=band,
            texts=len(sure),
            asked=1 - float(sure.mean()),
            differing=int((sure & self.differs).sum()),
            missed=int((below & self.differs).sum()),
            reached=self.reached,
        )

    @property
    def reached(self) -> int:
        """How many texts have a score of the large model that reaches `middle`."""
        return int(((self.scores >= self.middle) != self.differs).sum())


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a band, its share of texts that the large model is asked, and its disagreements.

    `missed` counts the disagreements whose score is below the band. `reached` counts the texts
    whose score of the large model reaches the middle.
    """

    band: Band
    texts: int
    asked: float
    differing: int
    missed: int
    reached: int

    @property
    def disagreement(self) -> float:
        """The share of texts on which the cascade disagrees with the large model."""
        return self.differing / self.texts

    @property
    def interval(self) -> Interval:
        """The interval of `disagreement`."""
        return exact_interval(self.differing, self.texts)


def exact_interval(count: int, total: int) -> Interval:
    """Return the 95 % interval of a share that was found `count` times in `total`.

    This is the exact interval of the binomial distribution (Clopper and Pearson 1934).
    """
    least = _bisect(lambda share: _at_most(count - 1, total, share) <= 1 - _TAIL) if count else 0.0
    if count == total:
        return least, 1.0
    return least, _bisect(lambda share: _at_most(count, total, share) <= _TAIL)


def trials_needed(rate: float) -> int:
    """Return how many tested texts can show that a `rate` is kept if none breaks it."""
    return math.ceil(math.log(_TAIL) / math.log1p(-rate))


def find_bands(judged: Judged) -> list[Band]:
    """Return bands from wide to narrow.

    Each band leaves as many texts as possible to the small model, for its number of disagreements.
    """
    is_below = judged.scores < judged.middle
    below = _Tail(-judged.scores[is_below], judged.differs[is_below], end=-judged.middle, start=0.0)
    above = _Tail(judged.scores[~is_below], judged.differs[~is_below], end=judged.middle, start=1.0)
    splits = []
    for errors in range(len(below.sizes) + len(above.sizes) - 1):
        first = max(0, errors - len(above.sizes) + 1)
        in_below = np.arange(first, min(errors + 1, len(below.sizes)))
        best = in_below[(below.sizes[in_below] + above.sizes[errors - in_below]).argmax()]
        splits.append((int(below.sizes[best]), int(above.sizes[errors - best])))
    low, high = splits[0]
    sizes = [(int(low * share), int(high * share)) for share in _WIDER] + splits
    places = np.unique(np.linspace(0, len(sizes) - 1, _MOST_BANDS).astype(int))
    kept = [sizes[place] for place in places]
    bands = [(abs(below.threshold(low)), abs(above.threshold(high))) for low, high in kept]
    return list(dict.fromkeys(bands))


def choose(
    tested: Judged, bands: list[Band], rate: float, *, missed: float | None = None
) -> Point | None:
    """Return the last band before the first one that may disagree more often than `rate`.

    With `missed`, a band must also miss at most this share of the texts that the large model finds.
    Return `None` if no band passes, or if the chosen band sends every text to the large model.
    """
    chosen = None
    for point in map(tested.point, bands):
        if _at_most(point.differing, point.texts, rate) > _TAIL:
            break
        if missed is not None and _at_most(point.missed, point.reached, missed) > _TAIL:
            break
        chosen = point
    return chosen if chosen is not None and chosen.asked < 1 else None


class _Tail:
    """The texts on one side of all bands, the surest first.

    `sizes` has for each number of disagreements how many texts the small model may decide.
    """

    def __init__(
        self, sureness: NDArray[np.float64], differs: NDArray[np.bool_], *, end: float, start: float
    ) -> None:
        order = np.argsort(-sureness, kind="stable")
        self._sureness = sureness[order]
        self._start, self._end = start, end
        self.sizes = np.append(np.flatnonzero(differs[order]), len(order))

    def threshold(self, size: int) -> float:
        """Return a threshold between the first `size` texts and the others."""
        if size == len(self._sureness):
            return self._end
        if size == 0:
            return self._start
        return round(float(self._sureness[size - 1 : size + 1].mean()), _DECIMALS)


def _at_most(count: int, total: int, share: float) -> float:
    """Return the probability of at most `count` hits in `total` trials of probability `share`."""
    if count < 0:
        return 0.0
    if count > total * share:
        # Numbers of hits beyond `count` get less and less likely, so their sum ends early.
        return 1 - _at_most(total - count - 1, total, 1 - share)
    ways = math.lgamma(total + 1) - math.lgamma(count + 1) - math.lgamma(total - count + 1)
    term = math.exp(ways + count * math.log(share) + (total - count) * math.log1p(-share))
    found = 0.0
    for hits in range(count, -1, -1):
        found += term
        if term <= found * sys.float_info.epsilon:
            break
        term *= hits * (1 - share) / ((total - hits + 1) * share)
    return found


def _bisect(is_above: Callable[[float], bool]) -> float:
    """Return the share from which on `is_above` is true."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return high
