"""Compares Sluicegate with other servers: `python -m loadtests peers`."""

from pathlib import Path

import click

from loadtests.peers.hits import measure_hits
from loadtests.peers.measure import (
    DRY_RUN,
    LITELLM,
    NGINX,
    Effort,
    measure_misses,
    measure_mixed,
)
from loadtests.peers.picture import draw
from loadtests.peers.servers import PEERS

_ROOT = Path(__file__).parents[2]
_HITS, _MISSES, _MIXED = _KINDS = ("hits", "misses", "mixed")
_NAMES = (NGINX, LITELLM, *PEERS)


@click.command("peers")
@click.option("--only", type=click.Choice(_NAMES), multiple=True, help="Only this peer.")
@click.option("--kinds", type=click.Choice(_KINDS), multiple=True, help="Only this kind of work.")
@click.option("--draw-only", is_flag=True, help="Only draw the newest results.")
@click.option("--dry-run", is_flag=True, help="Measure everything for a few seconds.")
def peers_command(
    *, only: tuple[str, ...], kinds: tuple[str, ...], draw_only: bool, dry_run: bool
) -> None:
    """Measure hits, misses and a mix of both, and compare them with other servers."""
    if draw_only:
        draw(_ROOT / "loadtests" / "results", _ROOT / "docs" / "plots" / "peers.svg")
        return
    effort = DRY_RUN if dry_run else Effort(keep=not only)
    peers = [name for name in _NAMES if not only or name in only]
    model_servers = [name for name in PEERS if name in peers]
    for kind in kinds or _KINDS:
        if kind == _HITS and {NGINX, LITELLM} & set(peers):
            measure_hits(peers, effort)
        elif kind == _MISSES and model_servers:
            measure_misses(model_servers, effort)
        elif kind == _MIXED:
            measure_mixed(peers, effort)
