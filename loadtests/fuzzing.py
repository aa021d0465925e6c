"""Provides what all fuzzers share: the seed, a folder, a memory watch and the final report."""

import contextlib
import random
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import click

from loadtests.machine import resident_bytes
from loadtests.report import print_table

_LOOK = 0.5


@contextlib.contextmanager
def seeded_run(seed: int | None) -> Iterator[tuple[Path, int]]:
    """Print the seed, random if none is given; yield it with a folder, deleted afterwards."""
    chosen = random.SystemRandom().randrange(10**9) if seed is None else seed
    click.echo(f"seed {chosen}")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder), chosen


def print_answers(answers: Mapping[tuple[str, int], int]) -> None:
    """Print how many requests of each kind ended with each status."""
    print_table(("kind", "status", "answers"), [(*k, n) for k, n in sorted(answers.items())])


def end_with(findings: Iterable[str]) -> None:
    """Print the findings, and fail the command if there are any."""
    if found := list(findings):
        sys.exit("\n\n".join(found))


class MemoryWatch:
    """Records, while entered, the largest resident memory of each process in bytes."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for name, pid in self._pids.items():
                with contextlib.suppress(OSError):  # the process has ended
                    self.most[name] = max(resident_bytes(pid), self.most.get(name, 0))
            if self._is_over.wait(_LOOK):
                return
