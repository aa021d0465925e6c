"""Runs whole systems in one process, in virtual time, under a seed."""

from testing.simulation.install import install, uninstall
from testing.simulation.machines import Machine, Process
from testing.simulation.randomness import number_instances
from testing.simulation.scheduler import Deadlock, LiveLock, OutOfTime
from testing.simulation.simulation import Simulation

__all__ = [
    "Deadlock",
    "LiveLock",
    "Machine",
    "OutOfTime",
    "Process",
    "Simulation",
    "install",
    "number_instances",
    "uninstall",
]
