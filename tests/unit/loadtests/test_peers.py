"""Only servers whose answers are equal are compared with Sluicegate."""

from pathlib import Path

import msgspec
import pytest

from loadtests.peers.measure import (
    AnswersDiffer,
    Work,
    check_answers,
)
from wire.protocol import Task

WORK = Work(served=Path("served"), exported=Path("exported"))


def test_equal_answers_pass() -> None:
    check_answers([[0.2, 0.8]], [[0.2005, 0.7995]], WORK)
    embed = msgspec.structs.replace(WORK, task=Task.EMBED)
    check_answers([[0.5, 0.4999]], [[0.4999, 0.5]], embed)


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
        check_answers([[0.4999, 0.5001]], theirs, WORK)
