"""Tests processes of simulated machines: their ends, pauses, locks and random values."""

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import sqlite3
import threading
import time
import uuid
from pathlib import Path

import pytest

from sluicegate.gateway.events.syncing import boot_id
from testing.simulation import Machine, Simulation
from tests.unit.testing.simulation.conftest import Simulate


@pytest.fixture
def machine(simulation: Simulation) -> Machine:
    """Return a machine."""
    return simulation.machine("a", address="10.0.0.1")


def test_a_killed_process_runs_nothing_more(simulation: Simulation, machine: Machine) -> None:
    """Neither its tasks nor its threads run again, not even their `finally`."""
    seen: list[str] = []

    def work() -> None:
        try:
            time.sleep(2)
        finally:
            seen.append("thread")

    async def serve() -> None:
        threading.Thread(target=work).start()
        try:
            await asyncio.sleep(2)
        finally:
            seen.append("task")

    async def main() -> object:
        process = machine.start("server", serve)
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(5)
        return process.is_running, await process.wait()

    assert simulation.run(main) == (False, None)
    assert not seen


def test_a_killed_process_leaves_its_file_locks(
    simulation: Simulation, machine: Machine, tmp_path: Path
) -> None:
    """Another process waits in virtual time until the lock is free."""
    path = tmp_path / "lock"

    async def hold() -> None:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            await asyncio.sleep(100)

    async def take() -> float:
        with path.open("w") as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_EX)
        return simulation.now

    async def main() -> object:
        holder = machine.start("holder", hold)
        await asyncio.sleep(1)
        taker = machine.start("taker", take)
        await asyncio.sleep(4)
        holder.kill()
        return await taker.wait()

    assert simulation.run(main) == pytest.approx(5, abs=0.01)


def test_a_paused_process_goes_on_where_it_stood(simulation: Simulation, machine: Machine) -> None:
    """Its timers that are over fire when it goes on."""

    async def work() -> float:
        await asyncio.sleep(2)
        return simulation.now

    async def main() -> object:
        process = machine.start("worker", work)
        await asyncio.sleep(1)
        process.pause()
        await asyncio.sleep(9)
        process.resume()
        return await process.wait()

    assert simulation.run(main) == pytest.approx(10, abs=0.01)


def test_a_process_keeps_why_it_failed(simulation: Simulation, machine: Machine) -> None:
    """The others go on."""

    async def work() -> None:
        raise ValueError("broken")

    async def main() -> None:
        process = machine.start("worker", work)
        with pytest.raises(ValueError, match="broken"):
            await process.wait()

    simulation.run(main)


def test_a_process_can_exit_at_once(simulation: Simulation, machine: Machine) -> None:
    """`os._exit` ends the simulated process alone."""

    async def work() -> None:
        try:
            os._exit(3)
        finally:
            raise AssertionError("the process has ended")

    async def main() -> bool:
        process = machine.start("worker", work)
        await process.wait()
        return process.is_running

    assert simulation.run(main) is False
    assert any(line.endswith("a/worker exits with 3") for line in simulation.trace.lines)


def test_a_crash_ends_all_processes_of_a_machine(simulation: Simulation, machine: Machine) -> None:
    """The machine has another boot id afterwards."""
    boots: list[str] = []

    async def work() -> None:
        boots.append(boot_id())
        await asyncio.sleep(100)

    async def main() -> list[bool]:
        processes = [machine.start("one", work), machine.start("two", work)]
        await asyncio.sleep(1)
        machine.crash()
        alive = [process.is_running for process in processes]
        machine.start("three", work)
        await asyncio.sleep(1)
        return alive

    assert simulation.run(main) == [False, False]
    assert boots[0] == boots[1] != boots[2]


def test_random_values_come_from_the_seed(simulate: Simulate) -> None:
    """Every source of chance gives the same values in a run of the same seed."""

    def values(seed: int) -> list[object]:
        simulation = simulate(seed)

        async def main() -> list[object]:
            return [
                random.random(),
                random.Random().random(),
                random.SystemRandom().random(),
                os.urandom(8),
                secrets.token_hex(8),
                uuid.uuid4(),
                os.getpid(),
            ]

        return list(simulation.run(main))

    assert values(1) == values(1)
    assert not set(values(1)[:-1]) & set(values(2)[:-1])


def test_processes_have_their_own_numbers(simulation: Simulation, machine: Machine) -> None:
    """`os.getpid` is that of the simulated process."""

    async def work() -> int:
        return os.getpid()

    async def main() -> list[int]:
        return [await machine.start(name, work).wait() for name in ("one", "two")]

    first, second = simulation.run(main)

    assert first != second
    assert os.getpid() not in {first, second}


def test_objects_without_a_hash_have_an_order_in_sets(simulate: Simulate) -> None:
    """By default they are hashed by address, which no seed decides."""

    class Thing:
        def __init__(self, name: int) -> None:
            self.name = name

    class Slotted:
        __slots__ = ("name",)

        def __init__(self, name: int) -> None:
            self.name = name

    def order(kind: type[Thing | Slotted]) -> list[int]:
        simulation = simulate()

        async def main() -> list[int]:
            return [thing.name for thing in {kind(name) for name in range(100)}]

        return list(simulation.run(main))

    assert order(Thing) == order(Thing)
    assert order(Slotted) == order(Slotted)


def test_a_process_is_killed_at_one_of_its_next_calls(
    simulation: Simulation, machine: Machine, tmp_path: Path
) -> None:
    """A commit counts as a call before it happens."""
    path = tmp_path / "database"

    async def work() -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t (x)")
            for number in range(5):
                connection.execute("INSERT INTO t VALUES (?)", [number])
                connection.commit()
                await asyncio.sleep(1)

    async def main() -> object:
        process = machine.start("worker", work)
        await asyncio.sleep(0.5)
        process.calls_left = 3
        await process.wait()
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return simulation.now, connection.execute("SELECT x FROM t").fetchall()

    now, rows = simulation.run(main)
    assert now == pytest.approx(3, abs=0.01)
    assert rows == [(0,), (1,), (2,)]


def test_calls_can_be_counted_from_when_an_address_sends(
    simulation: Simulation, machine: Machine
) -> None:
    """What comes from elsewhere does not begin the count."""
    caller = simulation.machine("caller", address="10.0.0.2")
    served: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while asked := await reader.read(100):
                served.append(asked)
                writer.write(b"first")
                await asyncio.sleep(0.1)
                writer.write(b"second")

    async def serve() -> None:
        async with await asyncio.start_server(answer, machine.address, 80) as server:
            await server.serve_forever()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection(machine.address, 80)
        writer.write(b"question")
        with contextlib.closing(writer), contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(1):
                await reader.readexactly(5)
                return await reader.read(100)
        return b""

    async def main() -> object:
        process = machine.start("server", serve)
        await asyncio.sleep(1)
        process.counts_from = caller.address, 2
        own = await machine.start("own", ask).wait()
        return own, await caller.start("caller", ask).wait(), process.is_running

    assert simulation.run(main) == (b"second", b"", False)
    assert served == [b"question", b"question"]
