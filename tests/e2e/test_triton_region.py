"""Tests a real Triton as a region, where it is installed.

`make check NAME=triton` installs it (650 MB), and does this for longer.
"""

from pathlib import Path

import pytest

from loadtests.peers.servers import PEERS
from loadtests.triton.command import AnswersDiffer, compare, run_checks


@pytest.mark.skipif(
    not PEERS["triton"].is_installed,
    reason="Triton is not installed: `make check NAME=triton` installs it",
)
def test_answers_through_triton_are_ours_also_while_it_dies_and_returns(
    tmp_path: Path, demo_models: Path
) -> None:
    shown = run_checks(tmp_path, demo_models, rate=20.0, quiet=1.0, away=1.5)

    assert shown.batches
    assert set(shown.killed.statuses) == {200}
    assert set(shown.stopped.statuses) == {200}


def test_answers_are_compared_label_by_label() -> None:
    ours = {"a": {"x": 0.6, "y": 0.4}, "b": {"x": 0.5000001, "y": 0.4999999}}
    theirs = {"a": {"x": 0.6, "y": 0.4}, "b": {"x": 0.4999999, "y": 0.5000001}}
    far = {"a": {"x": 0.6001, "y": 0.3999}}

    assert compare(ours, ours) == 0.0
    for wrong in (theirs, far):
        with pytest.raises(AnswersDiffer):
            compare(wrong, ours)
