"""Tests what the growth benchmark says of points, and how it sends."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from loadtests.growth import command
from loadtests.growth.load import send
from loadtests.growth.points import Point, added_exponent, judge, word
from loadtests.machine import Machine

MACHINE = Machine(
    cpu="a CPU", cores=2, memory_gib=1.0, python="3.11.7", date="2026-01-01", commit="abc1234"
)


def point(size: int, *, processor: float = 20.0, memory: float = 100.0) -> Point:
    return Point(
        curve="hit",
        size=size,
        rate=100.0,
        processor={"gateway": processor},
        idle={"gateway": 1000.0},
        p50=1.0,
        p99=2.0,
        memory={"gateway": memory},
    )


def test_what_grows_with_the_square_is_named() -> None:
    sizes = (1, 10, 100, 1000)
    found = {what: exponent for what, _, _, exponent in judge([point(n) for n in sizes])}
    steep = dict.fromkeys(found, 0.0) | {
        what: exponent for what, _, _, exponent in judge([point(n, processor=n**2) for n in sizes])
    }

    assert word(found["µs a request"]) == "constant"
    assert word(steep["µs a request"]) == "WORSE THAN LINEAR"
    assert steep["µs a request"] == pytest.approx(2.0)


def test_a_steep_end_is_seen_behind_a_flat_beginning() -> None:
    values = {1: 20.0, 10: 20.0, 100: 20.0, 1000: 20.0, 10_000: 2000.0, 100_000: 200_000.0}

    exponents = {
        what: exponent
        for what, _, _, exponent in judge([point(n, processor=v) for n, v in values.items()])
    }

    assert word(exponents["µs a request"]) == "WORSE THAN LINEAR"


def test_memory_is_judged_by_what_is_added_to_its_constant_part() -> None:
    assert added_exponent([(n, 100.0 + n) for n in (1, 10, 100, 1000)]) == pytest.approx(
        1.0, abs=0.01
    )
    assert added_exponent([(1, 100.0), (10, 101.0), (100, 103.0)]) == pytest.approx(0.0, abs=0.01)
    assert added_exponent([(1, 100.0), (2, 200.0)]) == pytest.approx(1.0)


def test_a_plot_names_machine_interpreter_date_and_commit(tmp_path: Path) -> None:
    command.draw("connections", [point(1), point(10)], MACHINE, tmp_path)

    text = (tmp_path / "connections.svg").read_text()
    assert "a CPU, 2 cores, Python 3.11.7, 2026-01-01, abc1234" in text


def test_clocks_are_read_while_nothing_is_under_way() -> None:
    with server() as (port, counts):
        warm, counted = send(
            port,
            itertools.repeat(b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"),
            lambda: counts[0],
            connections=3,
            phases=(0.02, 0.05),
        )

    before, outcome, after = counted
    assert warm[2] == before
    assert after - before == outcome.statuses[200] == len(outcome.latencies)
    assert outcome.percentile(0.5) <= outcome.percentile(0.99)


@contextmanager
def server() -> Iterator[tuple[int, list[int]]]:
    """Answer every request, in a thread; yield the port and the number of requests."""
    counts = [0]
    ports: Queue[int] = Queue()
    stopped = threading.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            counts[0] += 1
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
            writer.write(b"{}")
        writer.close()

    async def serve() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as running:
            ports.put(running.sockets[0].getsockname()[1])
            await asyncio.to_thread(stopped.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        yield ports.get(timeout=10.0), counts
    finally:
        stopped.set()
        thread.join()
