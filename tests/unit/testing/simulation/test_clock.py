"""Tests the clocks of simulated machines."""

import asyncio
import time
from collections.abc import Callable

import pytest

from testing.simulation import Machine, Simulation


@pytest.fixture
def machine(simulation: Simulation) -> Machine:
    """Return a machine."""
    return simulation.machine("a", address="10.0.0.1")


def _elapsed(
    simulation: Simulation, machine: Machine, seconds: float, change: Callable[[], None]
) -> tuple[float, float]:
    """Return what wall and monotonic clock count in `seconds` of true time, after a change."""
    found: list[tuple[float, float]] = []

    async def read() -> None:
        found.append((time.time_ns() / 1e9, time.monotonic()))

    async def main() -> None:
        await machine.start("reader", read).wait()
        change()
        await asyncio.sleep(seconds)
        await machine.start("reader", read).wait()

    simulation.run(main)
    (wall, monotonic), (later_wall, later_monotonic) = found
    return later_wall - wall, later_monotonic - monotonic


def test_a_jump_moves_the_wall_clock_alone(simulation: Simulation, machine: Machine) -> None:
    """The monotonic clock never jumps."""
    wall, monotonic = _elapsed(simulation, machine, 10, lambda: machine.clock.jump(-60))

    assert wall == pytest.approx(-50, abs=0.01)
    assert monotonic == pytest.approx(10, abs=0.01)


def test_a_drift_changes_both_clocks(simulation: Simulation, machine: Machine) -> None:
    """A fast oscillator gains from the moment at which it becomes fast."""

    def drift() -> None:
        machine.clock.drift = 0.1

    wall, monotonic = _elapsed(simulation, machine, 100, drift)

    assert wall == pytest.approx(110, abs=0.01)
    assert monotonic == pytest.approx(110, abs=0.01)


def test_timers_follow_the_clock_of_their_machine(simulation: Simulation, machine: Machine) -> None:
    """On a machine with a slow clock, ten seconds take longer."""
    machine.clock.drift = -0.5

    async def sleep() -> None:
        await asyncio.sleep(10)

    async def main() -> None:
        await machine.start("sleeper", sleep).wait()

    simulation.run(main)

    assert simulation.now == pytest.approx(20, abs=0.01)


def test_the_monotonic_clock_starts_anew_at_a_boot(
    simulation: Simulation, machine: Machine
) -> None:
    """The wall clock goes on."""
    found: list[tuple[float, float]] = []

    async def read() -> None:
        found.append((time.time_ns() / 1e9, time.monotonic()))

    async def main() -> None:
        await machine.start("reader", read).wait()
        machine.crash()
        await asyncio.sleep(30)
        await machine.start("reader", read).wait()

    simulation.run(main)

    (wall, _), (later_wall, monotonic) = found
    assert later_wall - wall == pytest.approx(30, abs=0.01)
    assert monotonic == pytest.approx(0, abs=0.01)
