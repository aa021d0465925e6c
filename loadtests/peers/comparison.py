"""Holds what the comparison with peers measured, by kind of work, and where each figure is from."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from backends.protocol import Task
from loadtests.machine import Machine

OURS = "sluicegate"
"""The name of Sluicegate among the peers' names."""


class Kind(StrEnum):
    """The kinds of work that are compared."""

    HITS = "hits"
    MISSES = "misses"
    MIXED = "mixed"


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured: `count` texts a run, or `duration` seconds of hits."""

    connections: int = 32
    count: int = 1500
    duration: float = 5.0
    rounds: int = 3
    tasks: tuple[Task, ...] = (Task.CLASSIFY, Task.EMBED)
    precisions: tuple[str, ...] = ("fp32", "bf16")

    @property
    def text(self) -> str:
        """What stands beside the figures."""
        work = f"{self.count} texts or {self.duration:g} s a run"
        return f"{self.connections} connections, {work}, {self.rounds} rounds"


DRY_RUN = Effort(count=100, duration=1.0, rounds=1, tasks=(Task.CLASSIFY,), precisions=("fp32",))


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where figures are from: the machine with date and commit, the command, the versions."""

    machine: Machine
    text: str
    versions: Mapping[str, str] = {}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What the servers were asked for."""

    kind: Kind
    task: Task = Task.CLASSIFY
    precision: str = "fp32"


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A server in one configuration, and the server of Sluicegate that it is compared with."""

    peer: str
    what: str
    beside: str


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: requests a second, times in ms, and `busy`: processor time of a request in ms."""

    rate: float
    p50: float
    p95: float | None = None
    p99: float | None = None
    busy: float | None = None


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """The median run of a server. `of_ours` is its rate, divided by that of `beside`."""

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


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A server that has no figure, and why."""

    work: Work
    peer: str
    what: str
    reason: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All figures, and their sources by name. The figures of a dry run mean nothing."""

    sources: Mapping[str, Source] = {}
    figures: tuple[Figure, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    is_dry_run: bool = False

    def at(self, work: Work) -> list[Figure]:
        """Return each server at some work, in its quickest configuration.

        Sluicegate comes first, then the others by falling rate.
        """
        found = [figure for figure in self.figures if figure.work == work]
        found.sort(key=lambda figure: (figure.peer != OURS, -figure.rate))
        best: dict[str, Figure] = {}
        for figure in found:
            best.setdefault(short(figure), figure)
        return list(best.values())


def short(figure: Figure) -> str:
    """Return the name of the server, without its configuration."""
    return figure.what.partition(": ")[0]


def figures_of(work: Work, runs: Mapping[Subject, Sequence[Run]], source: str) -> list[Figure]:
    """Return the median run of each subject."""
    medians = {
        subject: sorted(found, key=lambda run: run.rate)[len(found) // 2]
        for subject, found in runs.items()
    }
    rates = {subject.what: run.rate for subject, run in medians.items()}
    return [
        Figure(
            work=work,
            of_ours=round(run.rate / rates[subject.beside], 4),
            source=source,
            **msgspec.structs.asdict(subject),
            **msgspec.structs.asdict(run),
        )
        for subject, run in medians.items()
    ]


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

    They are those of other work, and, where `only` some peers were measured, those of the others.
    """
    done = {figure.work for figure in new.figures} | {entry.work for entry in new.left_out}

    def is_kept(entry: Figure | LeftOut) -> bool:
        return entry.work not in done or bool(only and entry.peer not in {OURS, *only})

    figures = (*filter(is_kept, old.figures), *new.figures)
    used = {figure.source for figure in figures}
    sources = dict(old.sources) | dict(new.sources)
    return Comparison(
        sources={name: source for name, source in sources.items() if name in used},
        figures=figures,
        left_out=(*filter(is_kept, old.left_out), *new.left_out),
        is_dry_run=new.is_dry_run,
    )
