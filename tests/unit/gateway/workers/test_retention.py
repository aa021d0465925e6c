"""How much of a disk the kept segments of event logs leave free."""

import shutil
from pathlib import Path

import pytest

from gateway.workers.retention import missing_bytes

GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "free", "missing"),
    [
        pytest.param(1 << 40, GIB - 8192, 8192, id="a large disk needs 1 GiB"),
        pytest.param(1 << 40, GIB, 0, id="which is enough"),
        pytest.param(GIB, 100, GIB // 10 - 100, id="a small disk needs a tenth"),
    ],
)
def test_what_should_be_free_is_1_gib_or_a_tenth(
    monkeypatch: pytest.MonkeyPatch, total: int, free: int, missing: int
) -> None:
    usage = shutil._ntuple_diskusage(total, total - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    assert missing_bytes(Path("anywhere")) == missing


def test_an_unknown_disk_has_enough(tmp_path: Path) -> None:
    assert missing_bytes(tmp_path / "none") <= 0
