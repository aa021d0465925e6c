"""Tests the peers' table: only servers that do the same work are compared, none is left out."""

import runpy
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from backends.protocol import Task
from loadtests.generator import Outcome
from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.process import PeerFailed, busy_with_children, running
from loadtests.peers.servers import PEERS
from loadtests.peers.table import (
    AnswersDiffer,
    PeerRun,
    check_answers,
    lines,
    markdown,
    verdict,
)

_TRITON = Path(__file__).parents[3] / "loadtests" / "peers" / "triton" / "server.py"


def run(rate: int, busy: float = 0.001) -> PeerRun:
    """Return a run of a second in which every request took 1 / rate seconds."""
    outcome = Outcome(duration=1.0, statuses={200: rate}, latencies=[1 / rate] * rate)
    return PeerRun(outcome=outcome, busy=busy)


def test_equal_answers_pass() -> None:
    """A difference below the tolerance is none; of vectors the largest part may be another."""
    check_answers([[0.2, 0.8]], [[0.2005, 0.7995]])
    check_answers([[0.5, 0.4999]], [[0.4999, 0.5]], task=Task.EMBED)


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
    """Another score, another label, another number of answers or of values raises."""
    with pytest.raises(AnswersDiffer):
        check_answers([[0.4999, 0.5001]], theirs)


def test_a_line_is_the_median_run_beside_ours() -> None:
    """Three runs count as the middle one; the ratios say how many times as much ours do."""
    theirs = [run(300, 0.004), run(100, 0.002), run(200, 0.006)]

    ours, gateway, line = lines(
        {"ours": [run(400)], "gateway": [run(300)], "theirs": theirs}, {}, own=2
    )

    assert (ours.rates, gateway.rates) == ((1.0, 0.75), (1.33, 1.0))
    assert (line.rate, line.rates, line.p95) == (200.0, (2.0, 1.5), 5.0)
    assert (line.busy, line.efforts) == (4.0, (4.0, 4.0))


def test_the_verdict_is_against_the_quickest_and_the_leanest_peer() -> None:
    """They may be two; a peer that failed is neither."""
    measured = {"ours": [run(400)], "quick": [run(300, 0.004)], "lean": [run(100, 0.002)]}

    said = verdict(lines(measured, {"broken": "no"}, own=1), own=1)

    assert (
        "ours: 1.33 times the rate of `quick`, 2.00 times less processor time than `lean`" in said
    )


def test_a_peer_that_failed_stands_in_the_table_with_its_reason() -> None:
    """Neither is it dropped, nor can its reason break the table."""
    table = markdown(lines({"ours": [run(400)]}, {"theirs": "no | library"}, own=1))

    assert "| theirs | failed: no / library |" in table


def test_processor_time_is_that_of_children_too() -> None:
    """The time of a child that works is its parent's."""
    work = "import time\nwhile time.process_time() < 0.1: pass\nprint('done', flush=True)"
    code = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {work + ';input()'!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}.wait()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()

        busy = busy_with_children(parent.pid)

        parent.communicate("\n")
    assert busy >= 0.09


def test_a_way_reaches_the_server_through_its_environment() -> None:
    """What is written is what is read."""
    way = PeerConfiguration(workers=1, threads=2, batch=16, delay=0.005)

    assert PeerConfiguration.read(way.environment()) == way
    assert way.label == "batches <= 16, 5 ms, 1 x 2 threads"


def test_triton_batches_only_when_it_is_told_to() -> None:
    """The configuration names a delay in microseconds, or no batching at all."""
    config = runpy.run_path(str(_TRITON))["config"]

    batching = config(PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002), size=384)
    single = config(PeerConfiguration(workers=2, threads=1), size=2)

    assert "max_batch_size: 8" in batching
    assert "dims: [384]" in batching
    assert "dims: [2]" in single
    assert "max_queue_delay_microseconds: 2000 }" in batching
    assert "count: 2" in single
    assert "dynamic_batching" not in single


def test_a_server_that_ends_at_once_fails_with_what_it_said(tmp_path: Path) -> None:
    """The reason is the end of its own output."""
    command = ("/bin/sh", "-c", "echo a library is missing; exit 3")
    (tmp_path / ".installed").touch()
    broken = msgspec.structs.replace(PEERS["triton"], command=command, environment=str(tmp_path))

    with pytest.raises(PeerFailed, match="status 3: a library is missing"):
        running(broken, broken.ways[0], tmp_path, Task.EMBED).__enter__()


def test_a_peer_whose_installation_broke_off_counts_as_not_installed(tmp_path: Path) -> None:
    """Its interpreter is there, and its packages are not."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    partial = msgspec.structs.replace(PEERS["triton"], environment=str(tmp_path))

    with pytest.raises(PeerFailed, match="not installed"):
        running(partial, partial.ways[0], tmp_path, Task.EMBED).__enter__()


def test_a_peer_that_is_not_installed_fails_with_what_to_do(tmp_path: Path) -> None:
    """The others are measured without it."""
    absent = msgspec.structs.replace(PEERS["triton"], environment="absent")

    with pytest.raises(PeerFailed, match=r"make \.venv-peers/absent/\.installed"):
        running(absent, absent.ways[0], tmp_path, Task.EMBED).__enter__()
