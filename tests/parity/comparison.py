"""Compares served answers with references."""

from collections.abc import Iterator

import msgspec
import numpy as np

from tests.parity.references import AGGREGATIONS, Entity, Numbers, References

TOLERANCE = 1e-4


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """How far the answers to one task are apart; labels and places are equal or not."""

    task: str
    answers: int
    largest: float
    mismatches: int

    @property
    def is_equal(self) -> bool:
        """Whether they are the same answers."""
        return self.mismatches == 0 and self.largest <= TOLERANCE


def compare(served: References, expected: References) -> list[Difference]:
    """Return a line for every task of a checkpoint."""
    assert served.scores.keys() == expected.scores.keys()
    assert served.entities.keys() == expected.entities.keys()
    return [
        *(_scores(task, served.scores[task], right) for task, right in expected.scores.items()),
        *(
            _entities(name, served.entities[name], right)
            for name, right in expected.entities.items()
        ),
    ]


def _scores(task: str, served: Numbers, expected: Numbers) -> Difference:
    """Compare numbers; the best of a line is its label, unless two are as good."""
    apart = float(np.abs(served - expected).max())
    mismatches = 0
    if expected.ndim > 1:
        best = expected.argmax(axis=1)
        lines = np.arange(len(expected))
        given_up = expected.max(axis=1) - expected[lines, served.argmax(axis=1)]
        mismatches = int(((served.argmax(axis=1) != best) & (given_up > TOLERANCE)).sum())
    return Difference(task=task, answers=len(expected), largest=apart, mismatches=mismatches)


def _entities(name: str, served: list[Entity], expected: list[Entity]) -> Difference:
    answers = len(expected)
    if name in AGGREGATIONS:
        expected = list(_without_overlaps(expected))
    places = [(e.text, e.label, e.start, e.end) for e in expected]
    found = [(e.text, e.label, e.start, e.end) for e in served]
    mismatches = sum(one != other for one, other in zip(places, found, strict=False))
    mismatches += abs(len(places) - len(found))
    apart = [
        abs(entity.score - right.score)
        for entity, right in zip(served, expected, strict=False)
        if not mismatches
    ]
    return Difference(
        task=f"{'entities' if name in AGGREGATIONS else 'answers'} ({name})",
        answers=answers,
        largest=max(apart, default=0.0),
        mismatches=mismatches,
    )


def _without_overlaps(entities: list[Entity]) -> Iterator[Entity]:
    """Yield what the pipeline finds as it is answered here: no character is in two entities."""
    text = reached = 0
    for entity in entities:
        if entity.text != text:
            text, reached = entity.text, 0
        start = max(entity.start, reached)
        if start < entity.end or start == entity.start == entity.end:
            yield msgspec.structs.replace(entity, start=start)
            reached = entity.end
