"""Measures how many distinct sentences a second are computed, compared with a bare session."""

import time
from functools import partial
from pathlib import Path
from statistics import median

import click

from loadtests.backend import calls
from loadtests.bare_sessions import BareSessions, Batching
from loadtests.generator import OK, Outcome, run_closed
from loadtests.measured import (
    backends_of,
    classify_bodies,
    demo_models,
    memory_of,
    metered,
    target_of,
)
from loadtests.options import connections, rounds
from loadtests.padded import write_padded
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import TWO_REGIONS, System

_BATCHING = Batching(rows=8)


@click.command()
@connections
@click.option("--count", default=3000, help="Number of sentences in each run.")
@rounds(3)
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def measure(*, connections: int, count: int, rounds: int, two_backends: bool) -> None:
    """Measure a bare session, a backend over HTTP and the gateway, one after another in each round.

    One bare session runs the served graph, and a second one runs the graph that computes padding.
    The faster of the two is the baseline. The gateway has a backend with all cores or, with
    --two-backends, one backend in each of two regions.
    """
    texts = iter(sentences(count * rounds * 2, seed=2))
    arguments = TWO_REGIONS if two_backends else ()
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, arguments=arguments) as system,
    ):
        running = backends_of(system)[0]
        served = models / "minilm" / "1" / "model.onnx"
        padded = write_padded(models.parent / "padded.onnx")
        known: list[str] = []

        def fresh() -> list[str]:
            known[:] = [next(texts) for _ in range(count)]
            return known

        def backend() -> Outcome:
            bodies = calls(fresh(), running.model("sentiment"))
            return run_closed(running.target, bodies, connections=connections)

        def gateway() -> Outcome:
            bodies = iter(classify_bodies(fresh()))
            return run_closed(target_of(system), bodies, connections=connections)

        workers = [each.pid for each in system.processes("gateway")]
        others = [each.pid for each in backends_of(system)]
        variants = {
            "a backend over HTTP": metered(backend, server=[running.pid]),
            "through the gateway": metered(gateway, server=workers, others=others),
        }
        bare = {
            f"bare session, {form} graph": metered(partial(_bare, graph, served.parent, known))
            for form, graph in (("served", served), ("padded", padded))
        }
        turns = in_turns(variants | bare, rounds)
        memory = memory_of(system)
    best = max(bare, key=lambda what: median(turn.outcome.rate for turn in turns[what]))
    table = {what: turns[what] for what in (best, *bare, *variants)}
    show(f"Misses on all cores: {connections} connections", table_of(table), memory)


def _bare(graph: Path, folder: Path, texts: list[str]) -> Outcome:
    """Run texts on a graph without a server."""
    sessions = BareSessions(graph, folder / "tokenizer.json", _BATCHING)
    batches = list(sessions.batches(texts))
    started = time.perf_counter()
    sessions.run_batches(batches)
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses={OK: len(texts)}, latencies=[])
