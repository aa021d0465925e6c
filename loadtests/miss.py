"""Measures distinct sentences per second through the model, beside the bare session."""

import os
import time
from functools import partial
from pathlib import Path
from statistics import median

import click

from loadtests.backend import calls
from loadtests.bare_sessions import BareSessions, Batching
from loadtests.generator import OK, Outcome, run_closed
from loadtests.machine import pin
from loadtests.measured import (
    backends_of,
    classify_bodies,
    demo_models,
    give_core,
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
_MODEL_CORE, _OTHER_CORE = 0, 1


@click.command()
@connections
@click.option("--count", default=3000, help="Sentences of each run.")
@rounds(3)
@click.option("--one-core", is_flag=True, help="The model has a core, the rest another.")
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def measure(
    *, connections: int, count: int, rounds: int, one_core: bool, two_backends: bool
) -> None:
    """Measure the bare session, a backend over HTTP and the gateway in turns.

    The bare session runs the served graph and the padded one; the quicker is the baseline.
    The gateway has a backend with all cores or, with --two-backends, one in each of two regions.
    """
    texts = iter(sentences(count * rounds * 2, seed=2))
    arguments = TWO_REGIONS if two_backends else ()
    with (
        demo_models() as models,
        System(models.parent / "data", models=models, arguments=arguments) as system,
    ):
        running = backends_of(system)[0]
        if one_core:
            give_core(system, "backend", _MODEL_CORE, others=_OTHER_CORE)
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
            f"bare session, {form} graph": metered(
                partial(_bare, graph, served.parent, known, one_core=one_core)
            )
            for form, graph in (("served", served), ("padded", padded))
        }
        turns = in_turns(variants | bare, rounds)
        memory = memory_of(system)
    best = max(bare, key=lambda what: median(turn.outcome.rate for turn in turns[what]))
    where = "one core" if one_core else "all cores"
    table = {what: turns[what] for what in (best, *bare, *variants)}
    show(f"Misses on {where}: {connections} connections", table_of(table), memory)


def _bare(graph: Path, folder: Path, texts: list[str], *, one_core: bool) -> Outcome:
    """Run a graph alone over texts, on the core of the model where it has one."""
    sessions = BareSessions(graph, folder / "tokenizer.json", _BATCHING, cores=1 if one_core else 0)
    if one_core:
        pin([os.getpid()], _MODEL_CORE)
    batches = list(sessions.batches(texts))
    started = time.perf_counter()
    sessions.run_batches(batches)
    took = time.perf_counter() - started
    if one_core:
        pin([os.getpid()], _OTHER_CORE)
    return Outcome(duration=took, statuses={OK: len(texts)}, latencies=[])
