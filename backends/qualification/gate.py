"""Accepts or refuses a variant by comparing its logits with those of fp32 on a golden set."""

from collections.abc import Sequence

import msgspec
import numpy as np

from backends.types import FloatArray


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds a candidate's loss: shares of the golden set, logits in their own unit."""

    flips: float = 0.01
    accuracy_loss: float = 0.003
    logit: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the numbers of a comparison; `reasons` is empty when it is accepted.

    `logit_mean`, `logit_p99` and `logit_worst` are distances of single logits. The accuracies are
    there when the golden set has labels.
    """

    rows: int
    flips: float
    logit_mean: float
    logit_p99: float
    logit_worst: float
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    reasons: list[str] = []


def judge(
    reference: FloatArray,
    candidate: FloatArray,
    *,
    expected: Sequence[int] | None = None,
    bounds: Bounds,
    several: bool = False,
) -> Verdict:
    """Compare logits, one line per text; `expected` holds the right column of each line.

    With `several` labels at once each logit's sign is a decision, and a text flips with any.
    """
    moved = np.abs(candidate - reference)
    if several:
        flips = float(((reference > 0) != (candidate > 0)).any(axis=1).mean())
    else:
        flips = float((reference.argmax(axis=1) != candidate.argmax(axis=1)).mean())
    verdict = Verdict(
        rows=len(reference),
        flips=flips,
        logit_mean=float(moved.mean()),
        logit_p99=float(np.quantile(moved, 0.99)),
        logit_worst=float(moved.max()),
        accuracy_before=_accuracy(reference, expected),
        accuracy_after=_accuracy(candidate, expected),
    )
    return msgspec.structs.replace(verdict, reasons=_reasons(verdict, bounds))


def _accuracy(logits: FloatArray, expected: Sequence[int] | None) -> float | None:
    if expected is None:
        return None
    return float((logits.argmax(axis=1) == np.asarray(expected)).mean())


def _reasons(verdict: Verdict, bounds: Bounds) -> list[str]:
    reasons = []
    # Written so that a NaN, which compares with nothing, is a reason and not a pass.
    if not verdict.flips <= bounds.flips:
        reasons.append(f"{verdict.flips:.2%} of labels flip, {bounds.flips:.2%} may")
    if bounds.logit is not None and not verdict.logit_worst <= bounds.logit:
        reasons.append(f"a logit moves by {verdict.logit_worst:.3g}, {bounds.logit:g} is allowed")
    if not np.isfinite(verdict.logit_worst):
        reasons.append("a logit is no number")
    if verdict.accuracy_before is not None and verdict.accuracy_after is not None:
        loss = verdict.accuracy_before - verdict.accuracy_after
        if not loss <= bounds.accuracy_loss:
            reasons.append(
                f"accuracy falls by {100 * loss:.2f} points, {100 * bounds.accuracy_loss:.2f} may"
            )
    return reasons
