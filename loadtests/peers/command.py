"""Compares Sluicegate with other servers: `python -m loadtests peers`."""

from pathlib import Path

import click
import msgspec

from loadtests.machine import this_machine
from loadtests.peers.comparison import (
    DRY_RUN,
    Comparison,
    Effort,
    Kind,
    Source,
    merge,
    read_comparison,
    write_comparison,
)
from loadtests.peers.hits import HIT_PEERS, measure_hits
from loadtests.peers.measure import measure_misses, measure_mixed
from loadtests.peers.page import render_page, table
from loadtests.peers.picture import draw_comparison
from loadtests.peers.servers import PEERS, installed_versions

_ROOT = Path(__file__).parents[2]
RESULTS = _ROOT / "loadtests" / "results" / "peers.json"
PAGE, PICTURE = _ROOT / "docs" / "peers.md", _ROOT / "docs" / "plots" / "peers.svg"
_DRY = _ROOT / "build" / "peers"
_KINDS = {
    Kind.HITS: HIT_PEERS,
    Kind.MISSES: tuple(PEERS),
    Kind.MIXED: (*HIT_PEERS, *PEERS),
}


@click.command("peers")
@click.option("--only", type=click.Choice(_KINDS[Kind.MIXED]), multiple=True, help="These peers.")
@click.option("--kinds", type=click.Choice(list(map(str, Kind))), multiple=True, help="This work.")
@click.option("--tune", is_flag=True, help="Try every configuration of model servers, once each.")
@click.option("--draw-only", is_flag=True, help="Write page and picture of recorded results.")
@click.option("--dry-run", is_flag=True, help="A few seconds of each, written to build/peers.")
def peers_command(
    *, only: tuple[str, ...], kinds: tuple[str, ...], tune: bool, draw_only: bool, dry_run: bool
) -> None:
    """Measure hits, misses and both mixed beside other servers; write results, page, picture."""
    effort = DRY_RUN if dry_run else Effort()
    if tune:
        once = msgspec.structs.replace(effort, rounds=1)
        measure_misses(taking_part(Kind.MISSES, only), once, tuned=True)
        return
    results, page, picture = RESULTS, PAGE, PICTURE
    if dry_run:
        results, page, picture = (_DRY / name for name in ("peers.json", "peers.md", "peers.svg"))
    for kind in Kind:
        peers = taking_part(kind, only)
        if peers and not draw_only and kind in (kinds or Kind):
            known = read_comparison(results)
            write_comparison(merge(known, _measure(kind, peers, effort, known), only=only), results)
    draw(results, page, picture)


def _measure(kind: Kind, peers: tuple[str, ...], effort: Effort, known: Comparison) -> Comparison:
    print(f"\n# {kind.title()}: {', '.join(peers)}", flush=True)
    machine = this_machine()
    name = f"{machine.date} {machine.commit} {kind}"
    if kind is Kind.HITS:
        figures, left_out = measure_hits(peers, effort, source=name)
    elif kind is Kind.MISSES:
        figures, left_out = measure_misses(peers, effort, source=name)
    else:
        figures, left_out = measure_mixed(peers, known, effort, source=name)
    print("\n".join(table(figures)))
    for each in left_out:
        print(f"left out: {each.what}: {each.reason}")
    is_dry = effort is DRY_RUN
    text = f"{'a dry run of ' * is_dry}`make bench NAME=peers`, {effort.text}"
    source = Source(machine=machine, text=text, versions=installed_versions())
    return Comparison(
        sources={name: source},
        figures=tuple(figures),
        left_out=tuple(left_out),
        is_dry_run=is_dry,
    )


def taking_part(kind: Kind, only: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of those that take part in a kind of work, all or `only` some."""
    return tuple(name for name in _KINDS[kind] if not only or name in only)


def draw(results: Path, page: Path, picture: Path) -> None:
    """Write page and picture from the recorded results."""
    comparison = read_comparison(results)
    if not comparison.figures:
        print(f"nothing to draw: {results} has no figures")
        return
    draw_comparison(comparison, picture)
    page.write_text(render_page(comparison, picture=picture.relative_to(page.parent).as_posix()))
    print(f"wrote {results}, {page} and {picture}")
