"""Tests cooperative threads: `threading`, `queue` and executors in virtual time."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from testing.simulation import Simulation


def _in_process(simulation: Simulation, work: Callable[[], object]) -> object:
    """Run a function in the first thread of a process; return its result."""

    async def main() -> object:
        return work()

    return simulation.run(main, until=1_000)


def test_a_thread_of_a_coroutine_takes_virtual_time(simulation: Simulation) -> None:
    """Two threads of `asyncio.to_thread` sleep at the same time."""

    async def main() -> None:
        await asyncio.gather(asyncio.to_thread(time.sleep, 5), asyncio.to_thread(time.sleep, 5))

    simulation.run(main)

    assert simulation.now == pytest.approx(5, abs=0.01)


def test_a_real_thread_goes_on_beside_a_simulation(simulation: Simulation) -> None:
    """It waits in real time, with the locks of the simulation's modules."""
    ends, turns, failures = threading.Event(), [0], list[BaseException]()

    def work() -> None:
        try:
            while not ends.wait(0.0001):
                time.sleep(0.0001)
                turns[0] += 1
        except BaseException as error:  # noqa: BLE001 - the test judges it
            failures.append(error)

    async def main() -> None:
        last = turns[0] + 10
        for _ in range(1_000_000):
            if turns[0] >= last or failures:
                break
            await asyncio.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    simulation.run(main)
    ends.set()
    thread.join()

    assert not failures


def test_a_lock_excludes_other_threads(simulation: Simulation) -> None:
    """Threads enter one after the other."""
    lock, inside, most = threading.Lock(), [0], [0]

    def enter() -> None:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(1)
            inside[0] -= 1

    def work() -> None:
        threads = [threading.Thread(target=enter) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _in_process(simulation, work)

    assert most == [1]
    assert simulation.now == pytest.approx(3, abs=0.01)


def test_another_thread_may_run_before_a_lock_is_taken(simulation: Simulation) -> None:
    """The seed decides where threads that take locks switch."""
    lock, seen = threading.Lock(), list[str]()

    def take(name: str) -> None:
        for _ in range(1_000):
            with lock:
                seen.append(name)

    def work() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(take, "ab"))

    _in_process(simulation, work)

    assert sorted(seen) != seen
    assert len(seen) == 2_000


def test_the_wait_for_a_lock_has_a_timeout(simulation: Simulation) -> None:
    """`acquire` gives up in virtual time."""

    def work() -> tuple[bool, bool]:
        lock = threading.Lock()
        lock.acquire()
        return lock.acquire(timeout=2), lock.acquire(blocking=False)

    assert _in_process(simulation, work) == (False, False)
    assert simulation.now == pytest.approx(2, abs=0.01)


def test_a_reentrant_lock_admits_its_owner_alone(simulation: Simulation) -> None:
    """An `RLock` belongs to a cooperative thread."""

    def work() -> list[bool]:
        lock, seen = threading.RLock(), list[bool]()
        with lock, lock:
            other = threading.Thread(target=lambda: seen.append(lock.acquire(timeout=1)))
            other.start()
            other.join()
        return seen

    assert _in_process(simulation, work) == [False]


def test_a_condition_wakes_the_thread_that_waits(simulation: Simulation) -> None:
    """A thread waits until another notifies it, or until its time is over."""
    changed, found = threading.Condition(), list[object]()

    def wait() -> None:
        with changed:
            found.append(changed.wait(timeout=10))
            found.append(changed.wait(timeout=1))

    def work() -> None:
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(1)
        with changed:
            changed.notify()
        thread.join()

    _in_process(simulation, work)

    assert found == [True, False]
    assert simulation.now == pytest.approx(2, abs=0.01)


def test_an_event_and_a_queue_pass_between_threads(simulation: Simulation) -> None:
    """What one thread sets or puts, another gets."""

    def work() -> object:
        ready, items = threading.Event(), queue.Queue[str]()

        def produce() -> None:
            ready.wait()
            time.sleep(1)
            items.put("item")

        threading.Thread(target=produce, daemon=True).start()
        ready.set()
        return items.get(timeout=5)

    assert _in_process(simulation, work) == "item"


def test_an_executor_runs_no_more_threads_than_it_has(simulation: Simulation) -> None:
    """Three calls of a second each take two seconds in two threads."""

    def work() -> list[int]:
        def call(number: int) -> int:
            time.sleep(1)
            return number

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(call, range(3)))

    assert _in_process(simulation, work) == [0, 1, 2]
    assert simulation.now == pytest.approx(2, abs=0.01)


def test_each_thread_has_its_own_locals(simulation: Simulation) -> None:
    """Values of `threading.local` and of context variables do not leak into other threads."""

    def work() -> list[object]:
        own, variable, seen = threading.local(), ContextVar("variable", default=0), list[object]()
        own.value = 1
        variable.set(1)

        def look() -> None:
            seen.extend([hasattr(own, "value"), variable.get()])
            own.value = 2

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return [*seen, own.value]

    assert _in_process(simulation, work) == [False, 0, 1]


def test_threads_know_who_they_are(simulation: Simulation) -> None:
    """The thread of the loop is the main thread, others are not."""

    def work() -> list[bool]:
        def is_main() -> bool:
            return threading.current_thread() is threading.main_thread()

        with ThreadPoolExecutor(1) as pool:
            return [is_main(), pool.submit(is_main).result()]

    assert _in_process(simulation, work) == [True, False]


def test_threads_of_all_processes_have_other_numbers(simulation: Simulation) -> None:
    """`threading` keeps the threads of the whole interpreter by their numbers."""

    async def work() -> int:
        def number() -> int:
            time.sleep(1)
            return threading.get_ident()

        return await asyncio.to_thread(number)

    async def main() -> list[object]:
        processes = [
            simulation.machine(name, address=name).start("worker", work)
            for name in ("10.0.0.1", "10.0.0.2")
        ]
        return [await process.wait() for process in processes]

    first, second = simulation.run(main)

    assert first != second


def test_the_wait_for_a_threads_end_has_a_timeout(simulation: Simulation) -> None:
    """`join` returns in virtual time, and the thread goes on."""

    def work() -> list[bool]:
        thread = threading.Thread(target=time.sleep, args=(5,), daemon=True)
        thread.start()
        thread.join(2)
        still = thread.is_alive()
        thread.join()
        return [still, thread.is_alive()]

    assert _in_process(simulation, work) == [True, False]
    assert simulation.now == pytest.approx(5, abs=0.01)


def test_a_killed_process_leaves_no_lock_of_a_module_taken(simulation: Simulation) -> None:
    """A lock that processes share, because a module has it, is released."""
    lock = threading.Lock()
    machine = simulation.machine("a", address="10.0.0.1")

    async def hold() -> None:
        with lock:
            await asyncio.sleep(100)

    async def take() -> bool:
        return lock.acquire(timeout=1)

    async def main() -> object:
        holder = machine.start("holder", hold)
        await asyncio.sleep(1)
        holder.kill()
        return await machine.start("taker", take).wait()

    assert simulation.run(main) is True
