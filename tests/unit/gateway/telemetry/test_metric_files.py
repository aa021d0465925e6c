"""Metrics of several processes, in files that a full disk and a dead process cannot spoil."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.mmap_dict import mmap_key
from prometheus_client.multiprocess import MultiProcessCollector

from sluicegate.gateway.telemetry.metric_files import (
    ReservedDict,
    add_up_dead,
    keep_metrics_in_files,
)
from tests.support.small_disk import mounted

# Counts `n` requests and one in flight; then waits, or is gone at once.
PROCESS = """
import os, sys
from pathlib import Path
from sluicegate.gateway.telemetry.metric_files import keep_metrics_in_files
folder = Path(sys.argv[1])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
keep_metrics_in_files(folder)
from prometheus_client import CollectorRegistry
from sluicegate.gateway.telemetry.metrics import GatewayMetrics
from sluicegate.wire.metric_declaration import gauge
metrics = GatewayMetrics(CollectorRegistry())
for _ in range(int(sys.argv[2])):
    metrics.request("/v1/classify", "sentiment", 0.001)
metrics.instruments.set_gauge(gauge("sluicegate_tasks", "Tasks."), int(sys.argv[2]))
metrics.flush()
print("counted", flush=True)
if sys.argv[3] == "stay":
    sys.stdin.readline()
"""
KEY = mmap_key("requests", "requests_total", ["task"], ["classify"], "Requests.")


class Disk:
    """Reserves space until it is full."""

    def __init__(self) -> None:
        self.full = False

    def allocate(self, file: int, offset: int, size: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.posix_fallocate(file, offset, size)


def page(folder: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    lines = generate_latest(registry).decode().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}


def value(file: ReservedDict, key: str) -> float:
    found, _ = file.read_value(key)  # type: ignore[no-untyped-call]
    return float(found)


def run(folder: Path, count: int, *, stay: bool = False) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), str(count), "stay" if stay else "go"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "counted\n"
    if not stay:
        process.communicate(timeout=60)
    return process


def test_a_library_that_stores_otherwise_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(values, "MmapedDict")

    with pytest.raises(RuntimeError, match="prometheus_client"):
        keep_metrics_in_files(tmp_path)


def test_every_block_of_a_file_is_reserved_before_it_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "counter_7.db"

    file = ReservedDict(path)
    for number in range(2000):
        file.write_value(KEY.replace("classify", f"task-{number}"), float(number))

    found = path.stat()
    assert found.st_mode & 0o777 == 0o600
    assert found.st_blocks * 512 >= found.st_size > 1 << 16
    assert sum(page(tmp_path).values()) == sum(range(2000))
    file.close()


@pytest.mark.system
def test_a_full_disk_ends_nobody_and_values_come_back_with_the_room(tmp_path: Path) -> None:
    """Written through a sparse file, this would be a bus error."""
    now = [0.0]
    with mounted(tmp_path / "disk", megabytes=1) as disk:
        path = disk.path / "counter_7.db"
        file = ReservedDict(path, clock=lambda: now[0])
        file.write_value(KEY, 1.0)
        disk.fill()
        for number in range(2000):
            file.write_value(KEY.replace("classify", f"task-{number}"), 1.0)
        was_on_disk = file.is_on_disk
        stale = page(disk.path)
        disk.empty()

        now[0] += 1.0
        file.write_value(KEY, 2.0)

        assert (was_on_disk, file.is_on_disk) == (False, True)
        assert 'requests_total{task="classify"}' in stale
        assert sum(page(disk.path).values()) == 2002
        file.close()


def test_a_file_that_could_not_be_made_is_made_later(tmp_path: Path) -> None:
    disk, now = Disk(), [0.0]
    disk.full = True
    file = ReservedDict(tmp_path / "counter_7.db", allocate=disk.allocate, clock=lambda: now[0])
    file.write_value(KEY, 5.0)
    before = (page(tmp_path), list(tmp_path.iterdir()))
    disk.full = False

    file.write_value(KEY, value(file, KEY) + 1)
    soon = page(tmp_path)
    now[0] += 1.0
    file.write_value(KEY, value(file, KEY) + 1)

    assert before == ({}, [])
    assert soon == {}
    assert page(tmp_path) == {'requests_total{task="classify"}': 7.0}
    file.close()


def test_a_file_grows_with_the_values_that_are_read_first(tmp_path: Path) -> None:
    file = ReservedDict(tmp_path / "gauge_livesum_7.db")

    keys = [mmap_key("up", "up", ["endpoint"], [f"eu-{n}"], "Up.") for n in range(2000)]
    first = [value(file, key) for key in keys]
    for number, key in enumerate(keys):
        file.write_value(key, float(number))

    assert first == [0.0] * len(keys)
    assert [value(file, key) for key in keys] == list(map(float, range(2000)))
    file.close()


def test_what_dead_processes_counted_is_kept_and_their_files_are_not(tmp_path: Path) -> None:
    living = run(tmp_path, 4, stay=True)
    for count in (1, 2):
        run(tmp_path, count)
    before = page(tmp_path)

    add_up_dead(tmp_path)
    add_up_dead(tmp_path)

    after = page(tmp_path)
    files = {path.name for path in tmp_path.glob("*.db")}
    living.communicate("go\n", timeout=60)
    labels = 'model="sentiment",route="/v1/classify"'
    counted = f'sluicegate_requests_total{{{labels},status="200"}}'
    assert (before[counted], after[counted]) == (7, 7)
    durations = 'sluicegate_request_duration_seconds_count{model="sentiment",outcome="ok",'
    assert after[f'{durations}route="/v1/classify"}}'] == 7
    # A gauge of those that live counts nobody else.
    assert after["sluicegate_tasks"] == 4
    kinds = {"counter", "histogram"}
    own = {f"{kind}_{living.pid}.db" for kind in (*kinds, "gauge_livesum")}
    assert files == own | {f"{kind}_0.db" for kind in kinds}


def test_a_file_that_a_crash_spoilt_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "counter_9.db").write_bytes(b"")
    (tmp_path / "histogram_9.db").write_bytes(b"\xff\x00\x00\x00nonsense")

    add_up_dead(tmp_path)

    assert page(tmp_path) == {}
