"""Draws all random values of a run from its seed."""

import os
import random
from typing import Final
from weakref import ref

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
        here.strand.process.generators.append(ref(self))
    _real_seed(self, a, version)  # type: ignore[arg-type]
