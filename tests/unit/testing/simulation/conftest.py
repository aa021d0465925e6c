"""Simulations for tests. Python's own functions are replaced during a test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.simulation import Simulation, install, uninstall

Simulate = Callable[..., Simulation]


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Simulate]:
    """Return what makes a simulation of a seed."""
    made: list[Simulation] = []

    def make(seed: int = 1, **options: bool) -> Simulation:
        made.append(Simulation(seed, tmp_path / f"{len(made)}", **options))
        return made[-1]

    try:
        install(numbered="tests.unit.testing.simulation")
    except RuntimeError as error:
        pytest.skip(str(error))
    yield make
    uninstall()


@pytest.fixture
def simulation(simulate: Simulate) -> Simulation:
    """Return a simulation."""
    return simulate()
