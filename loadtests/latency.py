"""Measures the latency of hits at a steady rate: of each cache tier, and of LiteLLM's proxy.

The latency of a request is measured from the time at which it was due. A server that only sends
fixed bytes is measured in the same rounds. Its latency shows how much of the measured latencies
comes from the machine and the load generator.
"""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from loadtests import hit
from loadtests.measured import (
    BARE,
    OTHERS,
    SERVER,
    bare_server,
    metered,
    popular_bodies,
    settle,
    target_of,
)
from loadtests.options import duration, rounds
from loadtests.peers.litellm import proxy
from loadtests.report import show, table_of
from loadtests.steady import SteadyLoad
from loadtests.turns import in_turns
from loadtests.workload import sentences
from loadtests.wrk import require, send

_SHORT = 2.0
_PEER = "LiteLLM's proxy, hit in Redis"


@click.command()
@click.option("--most", default=12_000.0, help="Highest rate, in requests a second.")
@duration(4.0)
@rounds(5)
def measure(*, most: float, duration: float, rounds: int) -> None:
    """Measure hits at half the capacity of each system, but at most `most` requests a second."""
    require()
    bodies = popular_bodies()
    notes = ["Each server is offered half of the rate that it reaches with 32 callers who wait."]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = hit.start_systems(stack, root, bodies, ways=(hit.FAST, hit.REDIS))
        targets = {BARE: (stack.enter_context(bare_server()).target, bodies)}
        targets |= {what: (target_of(system), bodies) for what, system in systems.items()}
        if proxy.is_installed():
            asked = proxy.bodies(sentences(len(bodies), seed=1))
            peer = proxy.proxy(root / "peer", asked, core=SERVER, others=OTHERS)
            targets[_PEER] = stack.enter_context(peer), asked
        else:
            notes.append("LiteLLM is missing: `make bench NAME=latency` installs it.")
        rest = partial(settle, list(systems.values()))
        runs = {}
        for what, (target, own) in targets.items():
            able = send(target, own, connections=32, duration=_SHORT, core=OTHERS, folder=root).rate
            rest()
            rate = float(f"{min(most, able / 2):.2g}")
            load = SteadyLoad(target=target, bodies=own, rate=rate, duration=duration, core=OTHERS)
            runs[f"{what}, {rate:,.0f} a second"] = metered(load.run, rest=rest)
        turns = in_turns(runs, rounds)
    show("Latency of hits", table_of(turns, by=lambda turn: turn.outcome.percentile(0.99)), *notes)
