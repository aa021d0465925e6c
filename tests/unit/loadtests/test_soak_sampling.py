"""Tests how a soak tells growth from noise."""

import os
from pathlib import Path

import pytest

from loadtests.soak.sampling import sample, size_of, trend


def test_a_rise_is_told_from_what_goes_up_and_down() -> None:
    steady = [(float(at), 100.0 + at % 2) for at in range(60)]
    leaking = [(float(at), 100.0 + at) for at in range(60)]

    assert trend(steady, warm_after=20.0).is_flat(share=0.05, beside=0.0)
    assert trend(leaking, warm_after=20.0).rise == pytest.approx(39.0)
    assert not trend(leaking, warm_after=20.0).is_flat(share=0.05, beside=10.0)


def test_what_came_up_before_the_warm_up_ended_is_no_rise() -> None:
    filling = [(float(at), float(min(at, 20))) for at in range(60)]

    assert trend(filling, warm_after=20.0).rise == pytest.approx(0.0)


def test_a_process_that_runs_is_sampled_and_one_that_ended_is_not() -> None:
    own = sample(os.getpid(), 1.0)

    assert own is not None
    assert own.memory > 1_000_000
    assert own.files > 0
    assert sample(2**22 + 1, 1.0) is None


def test_the_size_of_a_folder_is_what_its_files_take(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "file").write_bytes(b"x" * 10_000)

    assert 8_192 <= size_of(tmp_path) <= 65_536
