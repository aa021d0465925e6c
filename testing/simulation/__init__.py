"""Runs whole systems in one process, in virtual time, under a seed."""

from testing.simulation.hashing import fix_hashes
from testing.simulation.install import install, uninstall
from testing.simulation.machines import Machine, Process
from testing.simulation.scheduler import Deadlock, LiveLock, OutOfTime
from testing.simulation.simulation import Simulation

__all__ = [
    "Deadlock",
    "LiveLock",
    "Machine",
    "OutOfTime",
    "Process",
    "Simulation",
    "fix_hashes",
    "install",
    "uninstall",
]
