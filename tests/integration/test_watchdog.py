"""The supervisor notices children that live and do nothing, and those that take too much memory."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.gateway.supervisor.process_table import read_table, start_of
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec
from sluicegate.gateway.supervisor.supervisor import Supervisor
from sluicegate.gateway.supervisor.valkey import STATE_OPTIONS, find_program, valkey_spec
from sluicegate.gateway.telemetry.restarts import read_restarts
from testing.waiting import until

pytestmark = pytest.mark.anyio

# A process whose event loop gives signs of life until the file `spin` (or `grow`) is there.
LIVES = """
import asyncio, os, pathlib, signal, sys
from sluicegate.wire.heartbeat import heartbeat
from testing.waiting import until
folder = pathlib.Path(sys.argv[1])

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with heartbeat(int(os.environ["HEARTBEAT"])):
        kept = b""

        def has_ended():
            nonlocal kept
            if (folder / "spin").exists():
                (folder / "spin").unlink()
                while True:
                    pass
            if (folder / "grow").exists():
                kept = b"x" * int((folder / "grow").read_text())
                (folder / "grow").unlink()
            return stop.is_set()

        await until(has_ended, within=600)

asyncio.run(main())
"""
_MEBIBYTE = 1024 * 1024


class Bench:
    """A supervisor with one child that is watched, and what it said."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        (root / "logs").mkdir()
        spawner = Spawner(logs=root / "logs")
        self.supervisor = Supervisor(root=root, spawner=spawner, say=self.said.append)

    def grow(self, size: int) -> None:
        """Make the child take `size` bytes more."""
        written = self.root / "grow.new"
        written.write_text(str(size))
        written.rename(self.root / "grow")  # the child must not read it before it is complete

    async def start(self, *, silent_within: float = 0.0, memory_bytes: int = 0) -> int:
        """Start the child; return its pid once it has given a sign of life."""
        spec = ProcessSpec(
            name="gateway-0",
            role=ProcessRole.GATEWAY,
            argv=(sys.executable, "-c", LIVES, str(self.root)),
            heartbeat_variable="HEARTBEAT",
            silent_within=silent_within,
            memory_bytes=memory_bytes,
        )
        (child,) = self.supervisor.start([spec])
        await self.supervisor.ready([child])
        await until(lambda: child.has_responded, within=60, what="a sign of life")
        return self.pid()

    def pid(self) -> int:
        """Return the pid that the table gives; 0 where nothing runs."""
        return next(
            (e.pid for e in read_table(self.root) if e.role is not ProcessRole.SUPERVISOR), 0
        )

    async def successor_of(self, pid: int) -> int:
        """Return the pid of what took the place of `pid`."""
        await until(lambda: self.pid() not in (0, pid), within=60, what="a successor")
        assert start_of(pid) == 0
        return self.pid()

    def restarts(self) -> list[tuple[str, str, int]]:
        """Return what was counted."""
        return [(each.role, each.reason, each.count) for each in read_restarts(self.root)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.supervisor:
        yield made
        await made.supervisor.stop(asyncio.Event())


async def test_a_frozen_process_is_killed_and_replaced(bench: Bench) -> None:
    pid = await bench.start(silent_within=1.0)

    os.kill(pid, signal.SIGSTOP)
    await bench.successor_of(pid)

    assert bench.restarts() == [("gateway", "silent", 1)]
    assert any("it is killed" in line for line in bench.said)


async def test_a_spinning_event_loop_is_killed_and_replaced(bench: Bench) -> None:
    pid = await bench.start(silent_within=1.0)

    (bench.root / "spin").touch()
    await bench.successor_of(pid)

    assert bench.restarts() == [("gateway", "silent", 1)]


async def test_a_frozen_valkey_is_killed_and_replaced(bench: Bench) -> None:
    root = bench.root
    spec = valkey_spec(
        ProcessRole.VALKEY_STATE,
        STATE_OPTIONS,
        program=find_program(),
        sockets=root,
        data=root,
        silent_within=1.0,
    )
    (child,) = bench.supervisor.start([spec])
    await bench.supervisor.ready([child])
    await until(lambda: child.has_responded, within=60, what="an answer to PING")
    pid = bench.pid()

    os.kill(pid, signal.SIGSTOP)
    await bench.successor_of(pid)

    assert bench.restarts() == [("valkey-state", "silent", 1)]


async def test_a_process_that_takes_too_much_memory_is_asked_to_leave(bench: Bench) -> None:
    pid = await bench.start(memory_bytes=200 * _MEBIBYTE)

    bench.grow(220 * _MEBIBYTE)
    await bench.successor_of(pid)

    assert bench.restarts() == [("gateway", "memory", 1)]
    assert any("200 MiB; it is replaced" in line for line in bench.said)
    assert any("gateway-0 exited with code 0" in line for line in bench.said)


async def test_a_process_whose_memory_runs_away_is_killed(bench: Bench) -> None:
    pid = await bench.start(memory_bytes=100 * _MEBIBYTE)

    bench.grow(250 * _MEBIBYTE)
    await bench.successor_of(pid)

    assert bench.restarts() == [("gateway", "memory", 1)]
    assert any("100 MiB; it is killed" in line for line in bench.said)
