"""Tests how runs of seeds end."""

import pytest

from testing.simulation import Simulation
from testing.simulation.world.boots import NeverWaits, watched


def test_a_process_that_never_waits_ends_the_run(simulation: Simulation) -> None:
    machine = simulation.machine("a", address="10.0.0.1")

    async def spin() -> None:
        while True:
            pass

    async def main() -> None:
        await machine.start("worker", spin).wait()

    with pytest.raises(NeverWaits, match="processor time"), watched(simulation, longest=0.05):
        simulation.run(main)
