"""The peers' table: only for servers that do the same work, and no peer is left out silently."""

import runpy
from pathlib import Path

import msgspec
import pytest

from loadtests.generator import Outcome
from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.servers import PEERS, PeerFailed, running
from loadtests.peers.table import AnswersDiffer, check_answers, lines, markdown

_TRITON = Path(__file__).parents[3] / "loadtests" / "peers" / "triton" / "server.py"


def outcome(rate: int) -> Outcome:
    """Return a run of a second in which every request took 1 / rate seconds."""
    return Outcome(duration=1.0, statuses={200: rate}, latencies=[1 / rate] * rate)


def test_equal_answers_pass() -> None:
    """A difference below the tolerance is none."""
    check_answers({"ours": [[0.2, 0.8]], "theirs": [[0.2005, 0.7995]]})


@pytest.mark.parametrize(
    "theirs",
    [[[0.25, 0.75]], [[0.5001, 0.4999]], [], [[0.4999, 0.5001], [0.1, 0.9]]],
    ids=["scores", "label", "none", "too many"],
)
def test_other_answers_are_refused(theirs: list[list[float]]) -> None:
    """Another score, another label or another number of answers raises, and names the server."""
    with pytest.raises(AnswersDiffer, match="theirs"):
        check_answers({"ours": [[0.4999, 0.5001]], "theirs": theirs})


def test_a_line_is_the_median_run_beside_the_first() -> None:
    """Three runs count as the middle one; the ratio says how many times as much the first does."""
    measured = {"ours": [outcome(400)], "theirs": [outcome(n) for n in (300, 100, 200)]}

    ours, theirs = lines(measured, {})

    assert (ours.ours, theirs.rate, theirs.ours, theirs.p95) == (1.0, 200.0, 2.0, 5.0)


def test_a_peer_that_failed_stands_in_the_table_with_its_reason() -> None:
    """Neither is it dropped, nor can its reason break the table."""
    table = markdown(lines({"ours": [outcome(400)]}, {"theirs": "no | library"}))

    assert "| theirs | failed: no / library |" in table


def test_a_way_reaches_the_server_through_its_environment() -> None:
    """What is written is what is read."""
    way = PeerConfiguration(workers=1, threads=2, batch=16, delay=0.005)

    assert PeerConfiguration.read(way.environment()) == way
    assert way.label == "batches <= 16, 5 ms, 1 x 2 threads"


def test_triton_batches_only_when_it_is_told_to() -> None:
    """The configuration names a delay in microseconds, or no batching at all."""
    config = runpy.run_path(str(_TRITON))["config"]

    batching = config(PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002))
    single = config(PeerConfiguration(workers=2, threads=1))

    assert "max_batch_size: 8" in batching
    assert "max_queue_delay_microseconds: 2000 }" in batching
    assert "count: 2" in single
    assert "dynamic_batching" not in single


def test_a_server_that_ends_at_once_fails_with_what_it_said(tmp_path: Path) -> None:
    """The reason is the end of its own output."""
    command = ("/bin/sh", "-c", "echo a library is missing; exit 3")
    broken = msgspec.structs.replace(PEERS["triton"], command=command)

    with pytest.raises(PeerFailed, match="status 3: a library is missing"):
        running(broken, broken.ways[0], tmp_path).__enter__()
