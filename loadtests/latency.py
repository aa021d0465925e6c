"""Measures hit latency at a steady rate by cache tier, beside LiteLLM's proxy.

Latencies count from when a request was due. A server that only sends the same bytes is measured in
the same turns: its latencies are the share of the machine and the generator.
"""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from loadtests import hit, wrk
from loadtests.generator import Target
from loadtests.measured import BARE, OTHERS, SERVER, bare_server, popular_bodies, settle, target_of
from loadtests.options import duration, rounds
from loadtests.peers.litellm import proxy
from loadtests.report import Row, heading, keep, milliseconds, print_table
from loadtests.steady import SteadyLoadResult, SteadyLoadSpec, send_steadily
from loadtests.turns import in_turns, middle
from loadtests.workload import sentences

_SHORT = 2.0
_PEER = "LiteLLM's proxy, hit in Redis"
_COLUMNS = (
    *("what", "offered/s", "capacity/s", "p50 ms", "p99 ms", "p99.9 ms", "p99 of all runs"),
    *("left late", "p99 of the rest"),
)


@click.command()
@click.option("--most", default=12_000.0, help="Requests a second at most.")
@duration(4.0)
@rounds(5)
def measure(*, most: float, duration: float, rounds: int) -> None:
    """Measure hits at half the capacity of each system, up to a rate, beside LiteLLM."""
    wrk.require()
    bodies = popular_bodies()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = hit.start_systems(stack, root, bodies, ways=(hit.FAST, hit.REDIS))
        targets = {what: (target_of(system), bodies) for what, system in systems.items()}
        targets[BARE] = stack.enter_context(bare_server()).target, bodies
        if proxy.is_installed():
            asked = proxy.bodies(sentences(len(bodies), seed=1))
            peer = proxy.proxy(root / "peer", asked, core=SERVER, others=OTHERS)
            targets[_PEER] = stack.enter_context(peer), asked
        rest = partial(settle, systems.values())
        able = {}
        for what, (target, sent) in targets.items():
            able[what] = capacity(target, sent, root)
            rest()
        loads = {
            what: SteadyLoadSpec(
                target=target, bodies=sent, rate=half(able[what], most), duration=duration
            )
            for what, (target, sent) in targets.items()
        }
        variants = {what: partial(send_steadily, load) for what, load in loads.items()}
        runs = in_turns(variants, rounds, rest=rest)
    show("Latency of hits", loads, able, runs)
    if _PEER not in loads:
        print("LiteLLM is missing: `make bench NAME=latency` installs it.")


def capacity(target: Target, bodies: list[bytes], folder: Path) -> float:
    """Return how many requests a second a server answers to callers that wait."""
    sent = wrk.send(target, bodies, connections=32, duration=_SHORT, core=OTHERS, folder=folder)
    return sent.rate


def half(able: float, most: float = float("inf")) -> float:
    """Return half of a rate, but at most another, in two digits."""
    return float(f"{min(most, able / 2):.2g}")


def show(
    title: str,
    loads: Mapping[str, SteadyLoadSpec],
    able: Mapping[str, float],
    runs: Mapping[str, list[SteadyLoadResult]],
) -> None:
    """Print the median run of each load by p99, beside the capacity `able`, and keep it."""
    machine = heading(title)
    table, lines = [], []
    for what, load in loads.items():
        run = middle(runs[what], lambda run: run.percentile(0.99))
        p50, p99, p999 = (milliseconds(run.percentile(share)) for share in (0.5, 0.99, 0.999))
        spread = sorted(milliseconds(each.percentile(0.99)) for each in runs[what])
        late = 1 - len(run.prompt) / max(1, len(run.latencies))
        lines.append(
            (
                *(what, f"{load.rate:,.0f}", f"{able[what]:,.0f}", p50, p99, p999),
                *(", ".join(map(str, spread)), f"{late:.1%}"),
                milliseconds(run.prompt_percentile(0.99)),
            )
        )
        statuses = {200: run.sent - run.failed, 0: run.failed}
        ratio = round(load.rate / able[what], 3)
        rate = round(run.rate, 1)
        table.append(Row(what=what, rate=rate, ratio=ratio, p50=p50, p99=p99, statuses=statuses))
    print_table(_COLUMNS, lines)
    print(
        "\nleft late: more than 0.2 ms after their time, since the generator or all was at a halt"
    )
    if not all(run.is_first for every in runs.values() for run in every):
        print("The generator was not allowed to run before others on its core.")
    keep(title, table, {}, machine)
