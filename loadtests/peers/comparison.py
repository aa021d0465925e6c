"""Holds what the peers' comparison measured, by kind of work, and where each figure is from."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from backends.protocol import Task
from loadtests.machine import Machine

OURS = "sluicegate"
"""The name of Sluicegate among the peers' names."""
_MARKS = "†‡§¶#"


class Kind(StrEnum):
    """The kinds of work that are compared."""

    HITS = "hits"
    MISSES = "misses"
    MIXED = "mixed"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures are from: the machine, its date and commit, how they were taken, versions.

    `note` is what stands beside such figures in table and picture.
    """

    machine: Machine
    text: str
    note: str = ""
    versions: Mapping[str, str] = {}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers were asked for."""

    kind: Kind
    task: Task = Task.CLASSIFY
    precision: str = "fp32"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The median run of a server at some work.

    `of_ours` is its rate, divided by that of Sluicegate in the way `beside` in the same source.
    Times in milliseconds; `busy` is processor time of all its processes for a request.
    """

    work: Work
    peer: str
    what: str
    rate: float
    of_ours: float
    beside: str
    source: str
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    busy: float | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it is a figure of Sluicegate itself."""
        return self.peer == OURS


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A server that has no figure, and why."""

    work: Work
    peer: str
    what: str
    reason: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All figures, and their sources by name. Those of a dry run are to be believed by nobody."""

    sources: Mapping[str, Source] = {}
    figures: tuple[Figure, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    is_dry_run: bool = False

    def at(self, work: Work) -> list[Figure]:
        """Return the figures of some work: Sluicegate's first, each part by falling rate."""
        found = [figure for figure in self.figures if figure.work == work]
        return sorted(found, key=lambda figure: (not figure.is_ours, -figure.rate))

    def marks(self) -> dict[str, str]:
        """Return a mark for each source that has a note, by the source's name."""
        noted = [name for name, source in self.sources.items() if source.note]
        return dict(zip(noted, _MARKS, strict=False))


def read_comparison(path: Path) -> Comparison:
    """Return what `path` has, or an empty comparison."""
    return (
        msgspec.json.decode(path.read_bytes(), type=Comparison) if path.exists() else Comparison()
    )


def write_comparison(comparison: Comparison, path: Path) -> None:
    """Write it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(comparison)) + b"\n")


def merge(old: Comparison, new: Comparison, *, only: Collection[str] = ()) -> Comparison:
    """Return `new`, with those figures of `old` that it has not measured again.

    They are those of other work; and where `only` some peers were measured, those of the others.
    """
    done = {figure.work for figure in new.figures} | {entry.work for entry in new.left_out}

    def is_kept(entry: Figure | LeftOut) -> bool:
        return entry.work not in done or bool(only and entry.peer not in {OURS, *only})

    figures = (*filter(is_kept, old.figures), *new.figures)
    used = {figure.source for figure in figures}
    return Comparison(
        sources={
            name: source
            for name, source in (dict(old.sources) | dict(new.sources)).items()
            if name in used
        },
        figures=figures,
        left_out=(*filter(is_kept, old.left_out), *new.left_out),
        is_dry_run=new.is_dry_run,
    )
