"""Measures how many distinct sentences a second are computed, compared with a bare session."""

import time
from functools import partial

import click

from loadtests.backend import calls
from loadtests.bare_sessions import BareSessions, bare_sessions, best_first
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
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import TWO_REGIONS, System


@click.command()
@connections
@click.option("--count", default=3000, help="Number of sentences in each run.")
@rounds(3)
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def measure(*, connections: int, count: int, rounds: int, two_backends: bool) -> None:
    """Compare a bare session, a backend over HTTP and the gateway, one after another in each round.

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
        running, *_ = backends = backends_of(system)
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
        variants = {
            "a backend over HTTP": metered(backend, server=[running.pid]),
            "through the gateway": metered(
                gateway, server=workers, others=[each.pid for each in backends]
            ),
        }
        bare = {
            what: metered(partial(_run_alone, each, known))
            for what, each in bare_sessions(models, rows=8).items()
        }
        turns = in_turns(variants | bare, rounds)
        memory = memory_of(system)
    title = f"Misses on all cores: {connections} connections"
    show(title, table_of(best_first(turns, bare)), memory)


def _run_alone(sessions: BareSessions, texts: list[str]) -> Outcome:
    batches = list(sessions.batches(texts))
    started = time.perf_counter()
    sessions.run_batches(batches)
    took = time.perf_counter() - started
    return Outcome(duration=took, statuses={OK: len(texts)}, latencies=[])
