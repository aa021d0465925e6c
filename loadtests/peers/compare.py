"""Measures the kinds of work that were asked for, and writes results, page and picture."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from backends.protocol import Task
from loadtests.machine import Machine, this_machine
from loadtests.peers.comparison import (
    Comparison,
    Figure,
    Kind,
    LeftOut,
    Source,
    merge,
    read_comparison,
    write_comparison,
)
from loadtests.peers.hits import HIT_PEERS, measure_hits
from loadtests.peers.misses import measure_misses
from loadtests.peers.mixed import measure_mixed
from loadtests.peers.page import render_page
from loadtests.peers.picture import draw_comparison
from loadtests.peers.servers import PEERS
from loadtests.peers.versions import installed_versions

_ROOT = Path(__file__).parents[2]
PEER_NAMES = (*HIT_PEERS, *PEERS)
_TAKING_PART = {
    Kind.HITS: HIT_PEERS,
    Kind.MISSES: tuple(PEERS),
    Kind.MIXED: PEER_NAMES,
}


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The files that are written."""

    results: Path
    page: Path
    picture: Path
    tables: Path
    """The folder of the tables that each run of the model servers leaves."""


RECORDED = Outputs(
    results=_ROOT / "loadtests" / "results" / "peers.json",
    page=_ROOT / "docs" / "peers.md",
    picture=_ROOT / "docs" / "plots" / "peers.svg",
    tables=_ROOT / "loadtests" / "results",
)


def outputs_in(folder: Path) -> Outputs:
    """Return the files of a run whose figures are not recorded."""
    return Outputs(
        results=folder / "peers.json",
        page=folder / "peers.md",
        picture=folder / "peers.svg",
        tables=folder,
    )


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured, and for how long. `duration` is in seconds, of hits; `count` of texts."""

    kinds: tuple[Kind, ...] = tuple(Kind)
    only: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = (Task.CLASSIFY, Task.EMBED)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    connections: int = 32
    count: int = 1500
    duration: float = 5.0
    rounds: int = 3
    is_dry_run: bool = False

    def peers(self, kind: Kind) -> tuple[str, ...]:
        """Return the names of those that take part in a kind of work."""
        return tuple(name for name in _TAKING_PART[kind] if not self.only or name in self.only)


def compare(plan: Plan, outputs: Outputs) -> None:
    """Measure what is planned; write what was measured after each kind of work."""
    machine = this_machine()
    for kind in (kind for kind in Kind if kind in plan.kinds and plan.peers(kind)):
        print(f"\n# {kind.title()}: {', '.join(plan.peers(kind))}", flush=True)
        known = read_comparison(outputs.results)
        name = f"{machine.date} {machine.commit} {kind}"
        figures, left_out = _measure(plan, kind, known, outputs.tables, name)
        measured = Comparison(
            sources={name: _source(plan, machine)},
            figures=tuple(figures),
            left_out=tuple(left_out),
            is_dry_run=plan.is_dry_run,
        )
        write_comparison(merge(known, measured, only=plan.only), outputs.results)
        for each in left_out:
            print(f"left out: {each.what}: {each.reason}")
    draw(outputs)


def draw(outputs: Outputs) -> None:
    """Write page and picture from the recorded results."""
    comparison = read_comparison(outputs.results)
    if not comparison.figures:
        print(f"nothing to draw: {outputs.results} has no figures")
        return
    draw_comparison(comparison, outputs.picture)
    picture = outputs.picture.relative_to(outputs.page.parent).as_posix()
    outputs.page.write_text(render_page(comparison, picture=picture))
    print(f"wrote {outputs.results}, {outputs.page} and {outputs.picture}")


def _measure(
    plan: Plan, kind: Kind, known: Comparison, tables: Path, source: str
) -> tuple[list[Figure], list[LeftOut]]:
    common: Mapping[str, int] = {"connections": plan.connections, "rounds": plan.rounds}
    peers = plan.peers(kind)
    if kind is Kind.HITS:
        return measure_hits(peers=peers, duration=plan.duration, source=source, **common)
    if kind is Kind.MIXED:
        return measure_mixed(
            peers=peers, misses=known.figures, count=plan.count, source=source, **common
        )
    return measure_misses(
        peers=peers,
        tasks=plan.tasks,
        precisions=plan.precisions,
        count=plan.count,
        folder=tables,
        source=source,
        **common,
    )


def _source(plan: Plan, machine: Machine) -> Source:
    work = f"{plan.count} texts or {plan.duration:g} s a run, {plan.rounds} rounds"
    dry = "a dry run of " * plan.is_dry_run
    return Source(
        machine=machine,
        text=f"{dry}`make bench NAME=peers`, {plan.connections} connections, {work}",
        versions=installed_versions(),
    )
