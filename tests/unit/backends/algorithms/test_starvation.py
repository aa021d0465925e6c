"""Tests which time counts as had by a process, and when it is starved."""

from pathlib import Path

import pytest

from sluicegate.backends.algorithms.starvation import CoreDelays, ProcessTime


def test_what_runs_or_sleeps_has_its_time_by_the_clock() -> None:
    clock = ProcessTime(elapsed=2.0, delay=0.0)

    assert clock.left(3.0) == 1.0
    assert clock.left(2.0) == 0.0
    assert not clock.is_starved(2.0)


def test_a_wait_for_a_core_is_no_use_of_the_time() -> None:
    clock = ProcessTime(elapsed=4.0, delay=3.5)

    assert clock.left(1.0) == 0.5
    assert clock.is_starved(1.0)


@pytest.mark.parametrize("delay", [9.5, 10.0, 60.0])
def test_a_wait_for_a_core_ends_after_ten_times_as_long(delay: float) -> None:
    clock = ProcessTime(elapsed=10.0, delay=delay)

    assert clock.left(1.0) == 0.0
    assert clock.is_starved(1.0)


def test_a_clock_may_begin_anew() -> None:
    before, now = ProcessTime(elapsed=2.0, delay=0.5), ProcessTime(elapsed=3.0, delay=0.75)

    assert now.since(before) == ProcessTime(elapsed=1.0, delay=0.25)


class Machine:
    """Tells of a process whose threads run and wait as a test says."""

    def __init__(self, root: Path) -> None:
        self.now = 0.0
        self._folder = root / "1"
        self._times: dict[str, tuple[float, float]] = {}
        self.delays = CoreDelays(1, root=root, clock=lambda: self.now)

    def goes_on(self, seconds: float, *threads: float) -> None:
        """Let time go by in which each thread runs for such a part, and else waits for a core."""
        self.now += seconds
        for number, part in enumerate(threads, start=1):
            name = f"task/{number}" if number > 1 else "."
            ran, waited = self._times.get(name, (0.0, 0.0))
            times = ran + part * seconds, waited + (1 - part) * seconds
            self._times[name] = times
            for place in {name, f"task/{number}"}:
                (self._folder / place).mkdir(parents=True, exist_ok=True)
                nanoseconds = " ".join(str(int(each * 1e9)) for each in times)
                (self._folder / place / "schedstat").write_text(f"{nanoseconds} 1\n")
                (self._folder / place / "stat").write_bytes(b"1 (a process) R 0")


@pytest.mark.parametrize("has_threads", [False, True])
def test_one_thread_waits_for_what_it_does_not_run(tmp_path: Path, *, has_threads: bool) -> None:
    machine = Machine(tmp_path)
    for _ in range(50):
        machine.goes_on(0.2, 0.25)
        machine.delays.read(has_threads=has_threads)

    assert machine.delays.known == pytest.approx(7.5)


def test_threads_that_wait_for_each_other_use_the_time_of_their_process(tmp_path: Path) -> None:
    """Else an item of many threads would have ten times its time, and not be to blame."""
    machine = Machine(tmp_path)
    for _ in range(50):
        machine.goes_on(0.2, *[2 / 30] * 30)  # they have two cores
        machine.delays.read(has_threads=True)

    assert machine.delays.known == 0.0


def test_threads_that_others_leave_no_core_wait_as_long_as_none_of_them_runs(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    for _ in range(50):
        machine.goes_on(0.2, *[0.1] * 4)
        machine.delays.read(has_threads=True)

    assert machine.delays.known == pytest.approx(6.0)
