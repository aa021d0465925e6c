"""What makes two answers say the same."""

from typing import Any

import pytest

from sluicegate.backends.algorithms.comparison import compare

ENTITY = {"label": "PER", "score": 0.9, "text": "Ada", "start": 0, "end": 3}


@pytest.mark.parametrize(
    ("one", "other", "largest"),
    [
        ({"embedding": [0.5, 0.25]}, {"embedding": [0.5, 0.5]}, 0.25),
        ({"choice": 1, "scores": [0.25, 0.75]}, {"choice": 1, "scores": [0.5, 0.5]}, 0.25),
        ({"entities": [ENTITY]}, {"entities": [ENTITY | {"score": 0.4}]}, 0.5),
        ({"entities": []}, {"entities": []}, 0.0),
        ("text", "text", 0.0),
        (None, None, 0.0),
    ],
)
def test_numbers_may_differ(one: Any, other: Any, largest: float) -> None:
    found = compare(one, other)

    assert not found.changed
    assert found.largest == pytest.approx(largest)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"choice": 1, "scores": [0.25, 0.75]}, {"choice": 0, "scores": [0.75, 0.25]}),
        ({"entities": [ENTITY]}, {"entities": [ENTITY | {"start": 1}]}),
        ({"entities": [ENTITY]}, {"entities": []}),
        ({"embedding": [0.5]}, {"embedding": [0.5, 0.5]}),
        ({"urgent": True}, {"urgent": False}),
        ("text", 3),
    ],
)
def test_everything_else_may_not(one: Any, other: Any) -> None:
    assert compare(one, other).changed


def test_ranked_labels_are_compared_by_name() -> None:
    one = [{"label": name, "score": score} for name, score in (("a", 0.6), ("b", 0.2), ("c", 0.2))]
    other = [one[0], one[2], one[1]]

    assert compare(one, other).largest == 0.0
