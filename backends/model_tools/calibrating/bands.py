"""Chooses when a cascade asks its large model, so that it rarely disagrees with that model.

The order of the bands comes from one half of the texts. The other half tests them in this order, up
to the first band that may disagree too often: split fixed-sequence testing of Angelopoulos et al.
2021, "Learn then Test" (arXiv:2110.01052).
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.algorithms.cascade import Band

_SURE = 0.95
_DECIMALS = 6
_MOST_BANDS = 200
# Bands that decide less than the widest one without a disagreement.
_WIDER = (0.25, 0.5, 0.75)
Interval = tuple[float, float]


class Judged(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the small model's score of each text, and whether its decision differs.

    It differs from the large model's decision. The small model decides by whether a score reaches
    `middle`, which every band contains.
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
        )

    @property
    def reached(self) -> int:
        """How many texts have a score of the large model that reaches `middle`."""
        return int(((self.scores >= self.middle) != self.differs).sum())


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a band, its share of texts that the large model is asked, and its disagreements.

    `missed` counts those with a score below the band.
    """

    band: Band
    texts: int
    asked: float
    differing: int
    missed: int

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
    tail = (1 - _SURE) / 2
    least = _bisect(lambda share: _at_most(count - 1, total, share) <= 1 - tail) if count else 0.0
    if count == total:
        return least, 1.0
    return least, _bisect(lambda share: _at_most(count, total, share) <= tail)


def texts_needed(rate: float) -> int:
    """Return how many texts can show that a `rate` is kept if no text disagrees."""
    return 2 * math.ceil(math.log((1 - _SURE) / 2) / math.log1p(-rate))


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


def choose(tested: Judged, bands: list[Band], rate: float) -> Point | None:
    """Return the last band before the first one that may disagree more often than `rate`.

    Return `None` if such a band leaves no text to the small model.
    """
    chosen = None
    for point in map(tested.point, bands):
        if point.interval[1] > rate:
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
    hit, miss = math.log(share), math.log1p(-share)
    ways = math.lgamma(total + 1)
    return math.fsum(
        math.exp(
            ways
            - math.lgamma(hits + 1)
            - math.lgamma(total - hits + 1)
            + hits * hit
            + (total - hits) * miss
        )
        for hits in range(count + 1)
    )


def _bisect(is_above: Callable[[float], bool]) -> float:
    """Return the share from which on `is_above` is true."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return high
