"""Tests a real Triton as a region, where it is installed.

`make check NAME=triton` installs it (650 MB), and does this for longer.
"""

from pathlib import Path

import pytest

from loadtests.peers.servers import PEERS
from loadtests.triton.command import run_checks


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
