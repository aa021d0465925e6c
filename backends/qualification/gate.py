"""Accepts or refuses a variant by comparing its outputs with fp32 outputs on a golden set."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from sluicegate.backends.types import FloatArray, IntArray

# What is compared: the label of a text, the label of each token, the first and last token of the
# best span, the order of a query's documents, or a text's vector (its direction, and which other
# text is nearest).
Measure = Literal["labels", "tokens", "spans", "order", "vectors"]
CHANGES: dict[Measure, str] = {
    "labels": "of labels flip",
    "tokens": "of a text's tokens flip",
    "spans": "of spans move",
    "order": "of first places change",
    "vectors": "of nearest neighbours change",
}
_SURE = 0.95
_Z = NormalDist().inv_cdf(_SURE)
# Scores that are closer than this are a tie, which rounding may decide either way.
_TIE = 1e-6
_COSINE_SHARE = 0.01
# Similarities are computed for this many texts at a time, to bound memory.
_BLOCK = 1024


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits how far the outputs of a candidate may differ from the outputs in fp32.

    `flips` is the largest allowed share of results that change. `accuracy_loss` is the largest
    allowed fall of the share of correct labels. `logit` is the largest allowed change of any logit.
    For 99 % of the texts, the cosine between the candidate's vector and the fp32 vector must be at
    least `cosine`.
    """

    flips: float = 0.01
    accuracy_loss: float = 0.003
    cosine: float = 0.99
    logit: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the result of a comparison; the candidate is accepted if `reasons` is empty.

    `rows` counts texts, or queries if documents are ranked. `flips` is the share of these texts or
    queries whose result changed, and `flips_at_most` is an upper bound of this share with a
    certainty of 95 %. `swaps` is the share of document pairs whose order changed. `logit_mean`,
    `logit_p99` and `logit_worst` are absolute changes of logits. 99 % of the texts have a larger
    cosine than `cosine`. The accuracies are set if the golden set has labels.
    """

    measure: Measure = "labels"
    rows: int
    flips: float
    flips_at_most: float
    logit_mean: float
    logit_p99: float
    logit_worst: float
    swaps: float | None = None
    cosine: float | None = None
    cosine_worst: float | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    reasons: list[str] = []


def judge(
    reference: FloatArray,
    candidate: FloatArray,
    *,
    expected: Sequence[int] | None = None,
    bounds: Bounds,
    multi_label: bool = False,
    measure: Measure = "labels",
    owners: IntArray | None = None,
) -> Verdict:
    """Compare outputs line by line; `expected` holds the column of each line's correct label.

    A line belongs to a text, to a token or to a document. For a token, `owners` holds the index of
    its text. For a document, `owners` holds the index of its query. With `multi_label`, a text may
    have several labels: the sign of each logit is one decision, and a line flips if any decision
    changes.
    """
    moved = np.abs(candidate - reference)
    owned: IntArray = np.arange(len(reference), dtype=np.int32) if owners is None else owners
    swaps: float | None = None
    if measure == "order":
        first, swapped = _reordered(reference[:, 0], candidate[:, 0], owned)
        shares, swaps = first, float(swapped.mean())
    elif measure == "spans":
        shares = _moved_spans(reference, candidate, owned)
    elif measure == "vectors":
        shares = _other_neighbours(_directions(reference), _directions(candidate))
    else:
        shares = _by_owner(_flipped(reference, candidate, multi_label=multi_label), owned)
    flips = float(shares.mean())
    verdict = Verdict(
        measure=measure,
        rows=len(shares),
        flips=flips,
        flips_at_most=at_most(flips, len(shares)),
        logit_mean=float(moved.mean()),
        logit_p99=float(np.quantile(moved, 0.99)),
        logit_worst=float(moved.max()),
        swaps=swaps,
        accuracy_before=_accuracy(reference, expected),
        accuracy_after=_accuracy(candidate, expected),
    )
    if measure == "vectors":
        cosines = (_directions(reference) * _directions(candidate)).sum(axis=1)
        verdict = msgspec.structs.replace(
            verdict,
            cosine=float(np.quantile(cosines, _COSINE_SHARE)),
            cosine_worst=float(cosines.min()),
        )
    return msgspec.structs.replace(verdict, reasons=_reasons(verdict, bounds))


def at_most(share: float, units: int) -> float:
    """Return the upper end of the one-sided 95 % Wilson interval of a share (Wilson 1927)."""
    centre = share + _Z**2 / (2 * units)
    spread = _Z * math.sqrt(max(share * (1 - share), 0.0) / units + (_Z / (2 * units)) ** 2)
    return min((centre + spread) / (1 + _Z**2 / units), 1.0)


def units_needed(share: float, bound: float) -> int:
    """Return how many texts are needed to show that a `share` of changes is within `bound`.

    For a bound of 1 %, 268 texts are needed if no text changes, and 1,072 texts if half a per cent
    of the texts change.
    """
    return math.ceil(_Z**2 * bound * (1 - bound) / (bound - share) ** 2)


def _flipped(
    reference: FloatArray, candidate: FloatArray, *, multi_label: bool
) -> NDArray[np.bool_]:
    if multi_label:
        signs: NDArray[np.bool_] = ((reference > 0) != (candidate > 0)).any(axis=1)
        return signs
    labels: NDArray[np.bool_] = reference.argmax(axis=1) != candidate.argmax(axis=1)
    return labels


def _by_owner(changed: NDArray[np.bool_], owners: IntArray) -> NDArray[np.float64]:
    """Return for each text the share of its lines that changed.

    The tokens of a text are not independent, so a text counts as one observation.
    """
    counts = np.bincount(owners)
    found = counts > 0
    shares: NDArray[np.float64] = np.bincount(owners, changed)[found] / counts[found]
    return shares


def _moved_spans(
    reference: FloatArray, candidate: FloatArray, owners: IntArray
) -> NDArray[np.float64]:
    """Return for each text whether another token has the highest logit of a start or an end."""
    moved = []
    for owner in np.unique(owners):
        before, after = reference[owners == owner], candidate[owners == owner]
        chosen = np.take_along_axis(before, after.argmax(axis=0)[None], axis=0)[0]
        moved.append((before.max(axis=0) - chosen > _TIE).any())
    return np.array(moved, dtype=np.float64)


def _reordered(
    reference: FloatArray, candidate: FloatArray, owners: IntArray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return for each query whether its first document changed, and its share of swapped pairs."""
    first, swapped = [], []
    for owner in np.unique(owners):
        before, after = reference[owners == owner], candidate[owners == owner]
        first.append(float(before.max() - before[after.argmax()] > _TIE))
        apart = before[:, None] - before[None, :] > _TIE
        turned = apart & (after[:, None] < after[None, :])
        swapped.append(turned.sum() / max(apart.sum(), 1))
    return np.array(first), np.array(swapped)


def _directions(vectors: FloatArray) -> FloatArray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions: FloatArray = vectors / np.maximum(lengths, np.float32(1e-12))
    return directions


def _other_neighbours(reference: FloatArray, candidate: FloatArray) -> NDArray[np.float64]:
    """Return for each text whether its nearest neighbour changed.

    If several neighbours are equally near in fp32, any of them counts as unchanged.
    """
    changed = []
    for start in range(0, len(reference), _BLOCK):
        lines = np.arange(start, min(start + _BLOCK, len(reference)))
        before, after = reference[lines] @ reference.T, candidate[lines] @ candidate.T
        before[lines - start, lines] = after[lines - start, lines] = -np.inf
        nearest = after.argmax(axis=1)
        changed.append(before.max(axis=1) - before[lines - start, nearest] > _TIE)
    return np.concatenate(changed).astype(np.float64)


def _accuracy(logits: FloatArray, expected: Sequence[int] | None) -> float | None:
    if expected is None:
        return None
    return float((logits.argmax(axis=1) == np.asarray(expected)).mean())


def _reasons(verdict: Verdict, bounds: Bounds) -> list[str]:
    # The conditions are negated, so that a NaN gives a reason.
    reasons = _share_reasons(verdict.flips, verdict, bounds.flips, CHANGES[verdict.measure])
    if verdict.swaps is not None and not verdict.swaps <= bounds.flips:
        reasons.append(f"{verdict.swaps:.2%} of pairs are swapped, but only {bounds.flips:.2%} may")
    if verdict.cosine is not None and not verdict.cosine >= bounds.cosine:
        reasons.append(
            f"1% of the texts have a cosine to fp32 of {verdict.cosine:.4f} or less, but at least "
            f"{bounds.cosine:g} is required"
        )
    if bounds.logit is not None and not verdict.logit_worst <= bounds.logit:
        reasons.append(
            f"a logit changes by {verdict.logit_worst:.3g}, but at most {bounds.logit:g} is allowed"
        )
    if not np.isfinite(verdict.logit_worst):
        reasons.append("a logit is NaN or infinite")
    if verdict.accuracy_before is not None and verdict.accuracy_after is not None:
        loss = verdict.accuracy_before - verdict.accuracy_after
        if not loss <= bounds.accuracy_loss:
            reasons.append(
                f"accuracy falls by {100 * loss:.2f} points, but at most "
                f"{100 * bounds.accuracy_loss:.2f} are allowed"
            )
    return reasons


def _share_reasons(share: float, verdict: Verdict, bound: float, change: str) -> list[str]:
    """Return a reason if the share exceeds its bound, or if there are too few texts to decide."""
    if not share <= bound:
        return [f"{share:.2%} {change}, but only {bound:.2%} may"]
    # No number of texts can show that a bound of zero is kept.
    if bound == 0 or verdict.flips_at_most <= bound:
        return []
    unit = "queries" if verdict.measure == "order" else "texts"
    needed = f"{units_needed(share, bound):,} or more" if share < bound else "more"
    seen = f"{share:.2%} {change}, and {bound:.2%} may"
    few = f"with {verdict.rows} {unit} the share may be {verdict.flips_at_most:.2%}"
    return [f"{seen}, but {few}; use {needed} {unit}"]
