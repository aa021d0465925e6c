"""Parses the command line of the peers' comparison."""

from pathlib import Path

import click

from backends.protocol import Task
from loadtests.peers.compare import PEER_NAMES, RECORDED, Plan, compare, draw, outputs_in
from loadtests.peers.comparison import Kind
from loadtests.peers.measure import measure
from loadtests.peers.servers import PEERS

_ROOT = Path(__file__).parents[2]
_KINDS = tuple(kind.value for kind in Kind)
_TASKS = ("classify", "embed")
_PRECISIONS = ("fp32", "bf16")


@click.command("peers")
@click.option("--connections", default=32, show_default=True)
@click.option("--count", default=1500, show_default=True, help="Sentences of each run.")
@click.option("--duration", default=5.0, show_default=True, help="Seconds of each run of hits.")
@click.option("--rounds", default=3, show_default=True, help="Runs of each; the median counts.")
@click.option("--only", type=click.Choice(PEER_NAMES), multiple=True, help="These peers only.")
@click.option("--kinds", type=click.Choice(_KINDS), multiple=True, help="This work only.")
@click.option("--task", type=click.Choice(_TASKS), multiple=True, help="Of misses.")
@click.option("--precision", type=click.Choice(_PRECISIONS), multiple=True, help="Of misses.")
@click.option("--tune", is_flag=True, help="Try every way of running model servers, once each.")
@click.option("--draw-only", is_flag=True, help="Write table and picture of recorded results.")
@click.option("--dry-run", is_flag=True, help="A few seconds of each, written to build/peers.")
def peers_command(
    *,
    connections: int,
    count: int,
    duration: float,
    rounds: int,
    only: tuple[str, ...],
    kinds: tuple[str, ...],
    task: tuple[str, ...],
    precision: tuple[str, ...],
    tune: bool,
    draw_only: bool,
    dry_run: bool,
) -> None:
    """Measure hits, misses and both mixed beside other servers; write results, table, picture."""
    outputs = outputs_in(_ROOT / "build" / "peers") if dry_run else RECORDED
    if draw_only:
        draw(outputs)
        return
    plan = Plan(
        kinds=tuple(map(Kind, kinds)) or tuple(Kind),
        only=only,
        tasks=tuple(map(Task, task or _TASKS)),
        precisions=precision or _PRECISIONS,
        connections=connections,
        count=count,
        duration=duration,
        rounds=rounds,
    )
    if tune:
        _tune(plan)
    elif dry_run:
        outputs.results.unlink(missing_ok=True)
        compare(_shortened(plan), outputs)
    else:
        compare(plan, outputs)


def _shortened(plan: Plan) -> Plan:
    return Plan(
        kinds=plan.kinds,
        only=plan.only,
        tasks=(Task.CLASSIFY,),
        precisions=("fp32",),
        connections=plan.connections,
        count=100,
        duration=1.0,
        rounds=1,
        is_dry_run=True,
    )


def _tune(plan: Plan) -> None:
    """Run the model servers in all ways, once each; nothing of it is for the comparison."""
    for _, _, _ in measure(
        peers=tuple(name for name in PEERS if not plan.only or name in plan.only),
        tasks=plan.tasks,
        precisions=plan.precisions,
        connections=plan.connections,
        count=plan.count,
        rounds=1,
        folder=RECORDED.tables,
        tuned=True,
    ):
        pass  # each has been printed
