"""Measures hit latency at a steady rate by cache tier, beside LiteLLM's proxy.

Latencies count from when a request was due. A server that only sends the same bytes is measured in
the same turns: its latencies are the share of the machine and the generator.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from loadtests import hit, wrk
from loadtests.generator import Target
from loadtests.machine import this_machine
from loadtests.options import duration, rounds
from loadtests.peers.litellm import proxy
from loadtests.report import Row, keep
from loadtests.steady import SteadyLoadResult, SteadyLoadSpec, send_steadily
from loadtests.workload import sentences

_TEXTS = 100
_SHORT = 2.0
_PEER = "LiteLLM's proxy, hit in Redis"
_BARE = "bare uvicorn, which does nothing"
_WAYS = ("memory hit, fast path", "Redis hit (memory tier off)")


class _Subject(msgspec.Struct, frozen=True, kw_only=True):
    """A measured system, loaded at half its `capacity` or at the generator's limit."""

    target: Target
    bodies: list[bytes]
    capacity: float
    rate: float


@click.command()
@click.option("--most", default=12000.0, help="Requests a second at most.")
@duration(4.0)
@rounds(5)
def measure(*, most: float, duration: float, rounds: int) -> None:
    """Measure all in turns at up to `most` a second, and print the median run of each."""
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    texts = sentences(_TEXTS, seed=1)
    bodies = [msgspec.json.encode({"model": "sentiment", "input": text}) for text in texts]
    runs: dict[str, list[SteadyLoadResult]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        systems = hit.start_systems(stack, root, bodies, ways=_WAYS)
        targets = {what: (hit.target_of(system), bodies) for what, system in systems.items()}
        targets[_BARE] = (hit.bare_server(stack, length=330), bodies)
        if proxy.is_installed():
            asked = proxy.bodies(texts)
            peer = proxy.proxy(root / "peer", asked, core=hit.SERVER, others=hit.OTHERS)
            targets[_PEER] = (stack.enter_context(peer), asked)
        ways = {}
        for what, (target, sent) in targets.items():
            ways[what] = _way(target, sent, most=most, folder=root)
            hit.settle(systems.values())
        for _ in range(rounds):
            for what, way in ways.items():
                runs.setdefault(what, []).append(_send(way, duration))
                hit.settle(systems.values())
    _show(ways, runs)


def _way(target: Target, bodies: list[bytes], *, most: float, folder: Path) -> _Subject:
    sent = wrk.send(target, bodies, connections=32, duration=_SHORT, core=hit.OTHERS, folder=folder)
    rate = min(most, sent.rate / 2)
    return _Subject(target=target, bodies=bodies, capacity=sent.rate, rate=float(f"{rate:.2g}"))


def _send(way: _Subject, duration: float) -> SteadyLoadResult:
    asked = SteadyLoadSpec(target=way.target, bodies=way.bodies, rate=way.rate, duration=duration)
    return send_steadily(asked)


def _show(ways: dict[str, _Subject], runs: dict[str, list[SteadyLoadResult]]) -> None:
    machine = this_machine()
    print(f"\n## Latency of hits\n\n{machine.headline}\n")
    print("| what | offered/s | capacity/s | p50 ms | p99 ms | p99.9 ms | p99 of all runs", end="")
    print(" | left late | p99 of the rest |\n|---|---|---|---|---|---|---|---|---|")
    table = []
    for what, way in ways.items():
        ordered = sorted(runs[what], key=lambda run: run.percentile(0.99))
        run = ordered[len(ordered) // 2]
        p50, p99, p999 = (round(run.percentile(q) * 1000, 2) for q in (0.5, 0.99, 0.999))
        spread = ", ".join(f"{one.percentile(0.99) * 1000:.2f}" for one in ordered)
        late = 1 - len(run.prompt) / max(1, len(run.latencies))
        prompt = run.prompt_percentile(0.99) * 1000
        print(
            f"| {what} | {way.rate:,.0f} | {way.capacity:,.0f} | {p50} | {p99} | {p999}"
            f" | {spread} | {late:.1%} | {prompt:.2f} |"
        )
        answered = run.sent - run.failed
        table.append(
            Row(
                what=what,
                rate=round(run.rate, 1),
                ratio=round(way.rate / way.capacity, 3),
                p50=p50,
                p99=p99,
                statuses={200: answered, 0: run.failed},
            )
        )
    print(
        "\nleft late: more than 0.2 ms after their time, since the generator or all was at a halt"
    )
    if not all(run.is_first for every in runs.values() for run in every):
        print("The generator was not allowed to run before others on its core.")
    if _PEER not in ways:
        print("LiteLLM is missing: `make bench NAME=latency` installs it.")
    keep("Latency of hits", table, {}, machine)
