"""How much of a disk the kept segments of event logs leave free."""

import os
import shutil
from pathlib import Path

import pytest

from sluicegate.gateway.events.log import EventLog
from sluicegate.gateway.workers.retention import RetainedLog, SegmentRetention, missing_bytes
from tests.support.clock import Clock
from tests.support.events import make_event

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


@pytest.fixture
def log(tmp_path: Path) -> RetainedLog:
    """A log that has ended, of which all 100 events were read."""
    with EventLog(tmp_path, name="w0", segment_bytes=8192) as written:
        for number in range(100):
            written.publish(make_event(number))
    opened = RetainedLog(tmp_path / written.id)
    while batch := opened.reader.read(100):
        opened.reader.accept(batch)
    return opened


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*.log"))


def test_a_segment_is_kept_from_its_own_commit_on(tmp_path: Path, log: RetainedLog) -> None:
    clock = Clock(1_000.0)
    retention = SegmentRetention(tmp_path, keep=100.0, keep_bytes=1 << 30, wall=clock)
    half = len(log.reader.committed_segments(50))
    whole = len(segments(tmp_path))

    left = []
    for commit in (50, 100, 100):
        retention.record_commit(log, commit)
        clock.advance(60.0)
        retention.expire([log])
        left.append(len(segments(tmp_path)))

    assert 0 < half < whole
    assert left == [whole, whole - half, 0]


def test_no_segment_outlasts_the_one_after_it(tmp_path: Path, log: RetainedLog) -> None:
    clock = Clock(1_000.0)
    retention = SegmentRetention(tmp_path, keep=100.0, keep_bytes=1 << 30, wall=clock)
    retention.record_commit(log, 100)
    os.utime(segments(tmp_path)[0], (5_000.0, 5_000.0))

    clock.advance(100.0)
    retention.expire([log])

    assert segments(tmp_path) == []


def test_a_segment_that_is_truncated_is_kept_from_then_on(tmp_path: Path, log: RetainedLog) -> None:
    clock = Clock(1_000.0)
    retention = SegmentRetention(tmp_path, keep=100.0, keep_bytes=1 << 30, wall=clock)
    last = segments(tmp_path)[-1]
    before = last.stat().st_size

    retention.record_commit(log, 100)
    after = last.stat().st_size
    clock.advance(100.0)
    retention.expire([log])

    assert after < before
    assert segments(tmp_path) == []


@pytest.mark.parametrize(
    ("excess", "missing"),
    [
        pytest.param(1, 0, id="more is kept than may be"),
        pytest.param(0, 1, id="too little is free"),
    ],
)
def test_only_the_oldest_segment_makes_room_if_that_is_enough(
    tmp_path: Path, log: RetainedLog, excess: int, missing: int
) -> None:
    SegmentRetention(tmp_path, wall=Clock()).record_commit(log, 100)
    before = {path: path.stat().st_blocks * 512 for path in segments(tmp_path)}
    retention = SegmentRetention(
        tmp_path,
        keep=3600.0,
        keep_bytes=sum(before.values()) - excess,
        wall=Clock(),
        missing_bytes=lambda _: missing,
    )

    retention.expire([log])

    oldest, *others = before
    assert segments(tmp_path) == others
    counts = retention.statistics()
    assert (counts.deleted, counts.size_bytes) == (1, sum(before.values()) - before[oldest])
