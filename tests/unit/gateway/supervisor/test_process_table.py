"""`processes.json`, and ending what a killed supervisor left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.supervisor.process_table import (
    FILE,
    ProcessEntry,
    end_leftovers,
    read_table,
    start_of,
    write_table,
)
from sluicegate.gateway.supervisor.spec import ProcessRole


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def entry(pid: int, started: int) -> ProcessEntry:
    return ProcessEntry(
        role=ProcessRole.BACKEND,
        region="eu",
        index=0,
        pid=pid,
        address="http://h:1",
        started=started,
    )


def test_the_table_says_role_region_index_pid_and_address(tmp_path: Path) -> None:
    write_table(tmp_path, [entry(7, 3)])

    (row,) = msgspec.json.decode((tmp_path / FILE).read_bytes())

    expected = {"role": "backend", "region": "eu", "index": 0, "pid": 7, "address": "http://h:1"}
    assert expected.items() <= row.items()
    assert read_table(tmp_path) == [entry(7, 3)]


def test_a_process_of_the_table_is_ended(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    write_table(tmp_path, [entry(process.pid, start_of(process.pid))])

    ended = end_leftovers(tmp_path)

    assert ended == 1
    assert process.wait(timeout=60) == -9
    assert not (tmp_path / FILE).exists()


def test_another_process_that_got_the_same_pid_is_left_alone(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    write_table(tmp_path, [entry(process.pid, start_of(process.pid) + 1)])

    ended = end_leftovers(tmp_path)

    assert ended == 0
    assert process.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"role": "cook"}]'])
def test_a_table_that_cannot_be_read_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)

    assert read_table(tmp_path) == []


def test_a_process_that_is_gone_has_no_start() -> None:
    assert start_of(os.getpid()) > 0
    assert start_of(2**22 + 1) == 0
