"""Reads the scores and vectors in answers, and compares them with expected ones."""

import re

import msgspec

from sluicegate.wire.protocol import Task

_LABEL = re.compile(rb'"label":"(\w+)","score":([\d.e-]+)')
_VECTOR = re.compile(rb'"embedding":(\[[^\]]*\])')


class AnswersDiffer(Exception):
    """A server's answers differ from the expected answers; the message says where."""


def values_of(task: Task, body: bytes) -> list[float]:
    """Read the vector or the scores, which are JSON even in the reply of a backend."""
    if task is Task.EMBED:
        (vector,) = _VECTOR.findall(body)
        return msgspec.json.decode(vector, type=list[float])
    found = {name: float(score) for name, score in _LABEL.findall(body)}
    return [found[b"negative"], found[b"positive"]]


def check_answers(
    expected: list[list[float]], found: list[list[float]], *, task: Task, tolerance: float
) -> float:
    """Check that each text has the expected label, and values close to the expected values.

    Return the largest difference of a value.

    Raises:
        AnswersDiffer: a text has another label, or a value that is too far from the expected value.
    """
    if list(map(len, found)) != list(map(len, expected)):
        raise AnswersDiffer(f"{len(found)} answers of other sizes than the {len(expected)} of ours")
    farthest = 0.0
    for number, (row, wanted) in enumerate(zip(found, expected, strict=True)):
        far = max(abs(a - b) for a, b in zip(row, wanted, strict=True))
        is_other = task is Task.CLASSIFY and row.index(max(row)) != wanted.index(max(wanted))
        if is_other or not far <= tolerance:  # false for NaN too
            raise AnswersDiffer(f"answers differ by {far:.4g} at {number}")
        farthest = max(farthest, far)
    return farthest
