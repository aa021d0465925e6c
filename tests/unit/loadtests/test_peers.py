"""Only servers whose answers are equal are compared with Sluicegate."""

import pytest

from loadtests.peers.answers import AnswersDiffer, check_answers
from sluicegate.wire.protocol import Task


def test_equal_answers_pass() -> None:
    ours, near = [[0.2, 0.8]], [[0.2005, 0.7995]]

    found = check_answers(ours, near, task=Task.CLASSIFY, tolerance=1e-3)

    assert found == pytest.approx(0.0005)
    check_answers([[0.5, 0.4999]], [[0.4999, 0.5]], task=Task.EMBED, tolerance=1e-3)


@pytest.mark.parametrize(
    "theirs",
    [
        [[0.25, 0.75]],
        [[0.5001, 0.4999]],
        [],
        [[0.4999, 0.5001], [0.1, 0.9]],
        [[0.4999, 0.5001, 0]],
        [[float("nan"), 0.5001]],
    ],
    ids=["scores", "label", "none", "too many", "too long", "no number"],
)
def test_other_answers_are_refused(theirs: list[list[float]]) -> None:
    with pytest.raises(AnswersDiffer):
        check_answers([[0.4999, 0.5001]], theirs, task=Task.CLASSIFY, tolerance=1e-3)
