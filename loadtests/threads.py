"""Measures adaptive threads beside fixed ones, and the memory of sessions."""

import contextlib
from functools import partial

import click

from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.demo import demo_models
from loadtests.generator import Outcome
from loadtests.machine import resident_mib
from loadtests.options import duration, rounds
from loadtests.report import rows, show
from loadtests.turns import in_turns
from loadtests.workload import sentences

_SESSIONS = {
    "one session": {"threads": "1", "wide": "never"},
    "one wide and two narrow": {"threads": "2", "wide": "auto"},
}
_WAYS = {"narrow": "never", "wide": "always", "adaptive": "auto"}


@click.command()
@click.option("--clients", default="1,2,4,8,16,32,64")
@duration(3.0)
@rounds(3)
@click.option("--weigh-only", is_flag=True, help="Only the memory of the sessions.")
def measure(*, clients: str, duration: float, rounds: int, weigh_only: bool) -> None:
    """Measure adaptive threads beside fixed ones, and the memory of the sessions."""
    if not weigh_only:
        _compare(tuple(map(int, clients.split(","))), duration, rounds)
    _weigh()


def _compare(clients: tuple[int, ...], duration: float, rounds: int) -> None:
    """Measure each number of clients in turns over the three ways; print a table for each."""
    texts = iter(sentences(400_000, seed=4))
    with demo_models() as models, contextlib.ExitStack() as stack:
        running = {
            way: stack.enter_context(backend(models, wide=setting))
            for way, setting in _WAYS.items()
        }
        info = running["adaptive"].model("sentiment")

        def run(way: RunningBackend, number: int) -> Outcome:
            return run_closed(way, calls(texts, info), connections=number, duration=duration)

        for number in clients:
            variants = {way: partial(run, each, number) for way, each in running.items()}
            measured = in_turns(variants, rounds)
            show(f"Threads {number}: clients {number}", rows(measured))


def _weigh() -> None:
    """Print the memory of a backend with one session, and of one with three.

    Each runs alone, after a start that packed the weights, so that none shares pages with another.
    """
    texts = iter(sentences(100_000, seed=5))
    with demo_models() as models:
        with backend(models):
            pass
        weights: list[float] = []
        for what, settings in _SESSIONS.items():
            with backend(models, **settings) as running:
                bodies = calls(texts, running.model("sentiment"))
                for connections in (1, 8):
                    run_closed(running, bodies, connections=connections, duration=3.0)
                weights.append(resident_mib(running.pid))
            print(f"{what}: {weights[-1]:.0f} MiB (PSS), {weights[-1] / weights[0]:.2f}")
