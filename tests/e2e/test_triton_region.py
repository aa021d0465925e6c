"""Tests a real Triton as a region, where it is installed.

`make check NAME=triton` installs it (650 MB), and does this for longer.
"""

from pathlib import Path

import pytest

from loadtests.triton.check import AnswerDifference, compare, run_checks
from loadtests.triton.server import is_installed


@pytest.mark.skipif(
    not is_installed(), reason="Triton is not installed: `make check NAME=triton` installs it"
)
def test_answers_through_triton_are_ours_also_while_it_dies_and_returns(
    tmp_path: Path, demo_models: Path
) -> None:
    shown = run_checks(tmp_path, demo_models, texts=200, rate=20.0, quiet=1.0, away=1.5)

    assert shown.difference.is_none
    assert shown.difference.texts == 200
    assert set(shown.killed.statuses) == {200}
    assert set(shown.stopped.statuses) == {200}


def test_answers_are_compared_label_by_label() -> None:
    ours = {"a": {"x": 0.6, "y": 0.4}, "b": {"x": 0.5001, "y": 0.4999}}
    theirs = {"a": {"x": 0.6, "y": 0.4}, "b": {"x": 0.4999, "y": 0.5001}}

    same, other = compare(ours, ours), compare(theirs, ours)

    assert same == AnswerDifference(texts=2, other_labels=0, apart=0.0)
    assert same.is_none
    assert other.other_labels == 1
    assert not other.is_none
