"""Compares two lists of results for the same texts."""

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from sluicegate.backends.types import FloatArray

# If the scores of two labels differ by at most this much, the order of these labels is ignored.
_TIE = 1e-4
_SHOWN = 20


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """Holds an entity that a model found, and its score."""

    label: str
    start: int
    end: int
    score: float


class Results(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds a result for each text: scores by label, entities, or a unit vector."""

    scores: list[dict[str, float]] | None = None
    entities: list[list[Entity]] | None = None
    vectors: FloatArray | None = None


class ResultDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Holds how much two lists of results differ.

    `changed` has the indices of the texts whose results differ.

    Two results differ if their first labels or their entities differ, or if the cosine of their
    vectors is too small for the tolerance. `cosine` is the smallest cosine of all texts.
    """

    count: int
    largest: float
    changed: list[int]
    cosine: float | None = None

    def is_within(self, tolerance: float) -> bool:
        """Whether the results are equal within the tolerance."""
        return not self.changed and self.largest <= tolerance


def compare_results(served: Results, expected: Results, *, tolerance: float) -> ResultDifference:
    """Return the difference between two lists of results of the same kind.

    Raises:
        ValueError: the label names or the vector widths differ, or a number is not finite; the
            message names them.
    """
    for results, whose in ((served, "the model"), (expected, "the checkpoint's library")):
        if not all(map(math.isfinite, _numbers(results))):
            raise ValueError(f"{whose} gives a number that is not finite")
    if served.vectors is not None and expected.vectors is not None:
        return _vectors(served.vectors, expected.vectors, tolerance)
    if served.entities is not None and expected.entities is not None:
        return _entities(served.entities, expected.entities)
    return _scores(served.scores or [], expected.scores or [])


def describe_difference(found: ResultDifference) -> list[str]:
    """Return the lines that describe a difference."""
    shown = ", ".join(str(number + 1) for number in found.changed[:_SHOWN])
    lines = {
        "results": str(found.count),
        "largest difference": f"{found.largest:.2g}",
        "least cosine": "" if found.cosine is None else f"{found.cosine:.7f}",
        "different results": str(len(found.changed)),
        "texts that differ": f"{shown}, ..." if len(found.changed) > _SHOWN else shown,
    }
    return [f"{title:22} {value}" for title, value in lines.items() if value]


def _numbers(results: Results) -> Iterator[float]:
    if results.vectors is not None:
        yield float(np.abs(results.vectors).sum())
    for entities in results.entities or ():
        yield from (entity.score for entity in entities)
    for scores in results.scores or ():
        yield from scores.values()


def _scores(served: list[dict[str, float]], expected: list[dict[str, float]]) -> ResultDifference:
    labels = set(expected[0]) if expected else set()
    if served and set(served[0]) != labels:
        here, there = ", ".join(sorted(served[0])), ", ".join(sorted(labels))
        raise ValueError(f"the model has the labels {here}, but the checkpoint has {there}")
    largest, changed = 0.0, []
    for number, (found, right) in enumerate(zip(served, expected, strict=True)):
        largest = max(largest, *(abs(found[label] - score) for label, score in right.items()))
        best = max(found, key=found.__getitem__)
        if max(right.values()) - right[best] > _TIE:
            changed.append(number)
    return ResultDifference(count=len(expected), largest=largest, changed=changed)


def _entities(served: list[list[Entity]], expected: list[list[Entity]]) -> ResultDifference:
    largest, changed = 0.0, []
    for number, (found, right) in enumerate(zip(served, expected, strict=True)):
        places = [(entity.label, entity.start, entity.end) for entity in right]
        if places != [(entity.label, entity.start, entity.end) for entity in found]:
            changed.append(number)
            continue
        apart = [abs(one.score - other.score) for one, other in zip(found, right, strict=True)]
        largest = max([largest, *apart])
    return ResultDifference(count=len(expected), largest=largest, changed=changed)


def _vectors(served: FloatArray, expected: FloatArray, tolerance: float) -> ResultDifference:
    if served.shape != expected.shape:
        raise ValueError(
            f"the model's vectors have {served.shape[1]} values, but the checkpoint's have "
            f"{expected.shape[1]}"
        )
    cosines = (served * expected).sum(axis=1)
    # The cosine of two unit vectors whose distance is `tolerance`.
    least = 1 - tolerance**2 / 2 - np.finfo(np.float32).eps
    return ResultDifference(
        count=len(expected),
        largest=float(np.abs(served - expected).max()),
        changed=np.flatnonzero(~(cosines >= least)).tolist(),
        cosine=float(cosines.min()),
    )
