"""Draws all random values of a run from its seed."""

import os
import random
from typing import Any, Final

from testing.simulation.scheduler import here

_real_urandom: Final = os.urandom
_real_seed: Final = random.Random.seed


def urandom(size: int) -> bytes:
    """Return random bytes; the running process draws them from its own generator."""
    strand = here.strand
    return _real_urandom(size) if strand is None else strand.process.random.randbytes(size)


def seed(self: random.Random, a: object = None, version: int = 2) -> None:
    """Seed a generator. Inside a simulation, one without a seed gets one of the run's."""
    if a is None and here.strand is not None:
        a = int.from_bytes(urandom(16), "big")
    _real_seed(self, a, version)  # type: ignore[arg-type]


class _Numbers:
    """Counts objects in the order in which they are hashed first."""

    last = 0

    def __call__(self, numbered: Any) -> int:
        try:
            return int(numbered.number_in_run)
        except AttributeError:
            self.last += 1
            numbered.number_in_run = self.last
            return self.last


numbers: Final = _Numbers()
"""Hashes an object by a number, so that its place in a set depends on nothing but the run."""


def number(numbered: object) -> int:
    """Return the number of an object; a method `__hash__`."""
    return numbers(numbered)


def number_instances(*classes: type) -> None:
    """Hash the instances of classes that compare by identity in the order of their creation.

    By default they are hashed by their address, which differs from run to run.
    """
    for each in classes:
        each.__hash__ = number  # type: ignore[assignment,method-assign]
