"""Tests the event loop of simulated processes, and the order of what happens."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testing.simulation import Deadlock, LiveLock, OutOfTime, Simulation, scheduler
from tests.unit.testing.simulation.conftest import Simulate

_PROGRAM = """
import asyncio, secrets, sys, time
from pathlib import Path
from testing.simulation import Simulation, install
install()
simulation = Simulation(int(sys.argv[1]), Path(sys.argv[2]))
there, here = (simulation.machine(n, address=f"10.0.0.{i}") for i, n in enumerate("ab"))

async def serve():
    async def echo(reader, writer):
        while line := await reader.readline():
            await asyncio.to_thread(time.sleep, secrets.randbelow(100) / 1000)
            writer.write(line)
    async with await asyncio.start_server(echo, there.address, 80) as server:
        await server.serve_forever()

async def ask(name):
    reader, writer = await asyncio.open_connection("a", 80)
    for _ in range(20):
        writer.write(name)
        await reader.readline()
    writer.close()

async def call():
    tasks = {asyncio.create_task(ask(b"%d\\n" % n)) for n in range(10)}
    for task in tasks:
        await task

async def main():
    there.start("server", serve)
    await asyncio.sleep(1)
    await here.start("client", call).wait()

simulation.run(main, until=100)
print(simulation.trace.digest())
"""


def _digest(folder: Path, *, seed: int, hash_seed: int) -> str:
    command = [sys.executable, "-c", _PROGRAM, str(seed), str(folder)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": "."}  # noqa: TID251
    return subprocess.run(command, env=environment, check=True, capture_output=True).stdout.decode()


def test_equal_seeds_give_equal_digests_for_any_hash_seed(tmp_path: Path) -> None:
    """Two interpreters with other hashes of strings run the same steps."""
    first = _digest(tmp_path / "1", seed=5, hash_seed=1)

    assert first == _digest(tmp_path / "2", seed=5, hash_seed=2)
    assert first != _digest(tmp_path / "3", seed=6, hash_seed=1)


def test_a_day_passes_at_once(simulation: Simulation) -> None:
    """Timers take virtual time alone."""

    async def main() -> float:
        began = time.time_ns()
        await asyncio.sleep(86_400)
        return (time.time_ns() - began) / 1e9

    assert simulation.run(main) == pytest.approx(86_400, abs=0.001)


def test_callbacks_run_in_the_order_of_asyncio(simulation: Simulation) -> None:
    """Ready callbacks come first, in their order, then timers by their time."""
    seen: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.002, seen.append, "later")
        loop.call_later(0.001, seen.append, "sooner")
        loop.call_soon(seen.append, "first")
        loop.call_soon(seen.append, "second")
        await asyncio.sleep(0.01)

    simulation.run(main)

    assert seen == ["first", "second", "sooner", "later"]


def test_a_blocked_loop_does_not_block_other_processes(simulation: Simulation) -> None:
    """A callback that sleeps stops its own process."""
    machine = simulation.machine("a", address="10.0.0.1")
    ended: dict[str, float] = {}

    async def block() -> None:
        time.sleep(10)  # noqa: ASYNC251 - what is tested
        ended["blocked"] = simulation.now

    async def work() -> None:
        await asyncio.sleep(1)
        ended["other"] = simulation.now

    async def main() -> None:
        processes = [machine.start("blocked", block), machine.start("other", work)]
        for process in processes:
            await process.wait()

    simulation.run(main)

    assert ended == {
        "other": pytest.approx(1, abs=0.01),
        "blocked": pytest.approx(10, abs=0.01),
    }


def test_a_signal_calls_its_handler_on_the_loop(simulation: Simulation) -> None:
    """A process can be asked to stop as by `kill`."""

    async def serve() -> str:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        await stop.wait()
        return "stopped"

    async def main() -> object:
        process = simulation.machine("a", address="10.0.0.1").start("server", serve)
        await asyncio.sleep(1)
        process.signal(signal.SIGTERM)
        return await process.wait()

    assert simulation.run(main) == "stopped"


def test_a_failure_of_the_main_coroutine_is_raised(simulation: Simulation) -> None:
    """`run` raises what `main` raised."""

    async def main() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        simulation.run(main)


def test_waiting_for_nothing_is_a_deadlock(simulation: Simulation) -> None:
    """Without a timer, nothing would ever happen."""

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        simulation.run(main)


def test_a_loop_without_progress_is_a_live_lock(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many steps in a second of virtual time end the run."""
    monkeypatch.setattr(scheduler, "MOST_STEPS_PER_SECOND", 1_000)

    async def main() -> None:
        for _ in range(10_000):
            await asyncio.sleep(0)

    with pytest.raises(LiveLock):
        simulation.run(main)


def test_a_run_ends_at_its_virtual_time(simulation: Simulation) -> None:
    """`until` bounds a run."""

    async def main() -> None:
        await asyncio.sleep(100)

    with pytest.raises(OutOfTime):
        simulation.run(main, until=50)


def _order(simulation: Simulation) -> tuple[str, ...]:
    """Return in which order two processes run that start at one time."""
    seen: list[str] = []
    machine = simulation.machine("a", address="10.0.0.1")

    async def one() -> None:
        seen.append("one")

    async def two() -> None:
        seen.append("two")

    async def main() -> None:
        machine.start("one", one)
        machine.start("two", two)
        await asyncio.sleep(1)

    simulation.run(main)
    return tuple(seen)


def test_other_seeds_give_other_orders(simulate: Simulate) -> None:
    """The seed decides which of two processes runs first."""
    orders = {_order(simulate(seed)) for seed in range(20)}

    assert orders == {("one", "two"), ("two", "one")}


def test_a_started_world_goes_on_in_another_way_under_another_seed(simulate: Simulate) -> None:
    def drawn(seed: int) -> tuple[object, ...]:
        simulation = simulate(1)

        async def main() -> tuple[object, ...]:
            former, unseeded = random.random(), random.Random()
            simulation.reseed(seed)
            await asyncio.sleep(0.1)
            drawn = os.urandom(8), random.random(), unseeded.random(), random.Random().random()
            return former, *drawn, simulation.trace.digest()

        return tuple(simulation.run(main))

    one, again, other = drawn(5), drawn(5), drawn(6)

    assert one == again
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])
