"""Measures adaptive threads beside fixed ones, and the memory of sessions."""

import contextlib
import tempfile
from pathlib import Path

import click

from backends.model_tools.demo.build import build_demo_models
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.generator import Outcome
from loadtests.machine import resident_mib, this_machine
from loadtests.options import duration, rounds
from loadtests.report import rows, show
from loadtests.workload import sentences

_SESSIONS = {
    "one session": {"threads": "1", "wide": "never"},
    "one wide and two narrow": {"threads": "2", "wide": "auto"},
}
_WAYS = {"adaptive": "auto", "wide": "always", "narrow": "never"}


@click.command()
@click.option("--clients", default="1,2,4,8,16,32,64")
@duration(3.0)
@rounds(3)
@click.option("--weigh-only", is_flag=True, help="Only the memory of the sessions.")
def measure(*, clients: str, duration: float, rounds: int, weigh_only: bool) -> None:
    """Measure adaptive threads beside fixed ones, and what the sessions weigh."""
    if not weigh_only:
        compare(clients=tuple(map(int, clients.split(","))), duration=duration, rounds=rounds)
    weigh()


def compare(*, clients: tuple[int, ...], duration: float, rounds: int) -> None:
    """Measure each number of clients in turns over the three ways; print a table for each."""
    texts = iter(sentences(400_000, seed=4))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        models = Path(folder)
        build_demo_models(models, print)
        running = {
            way: stack.enter_context(backend(models, wide=setting))
            for way, setting in _WAYS.items()
        }
        info = running["adaptive"].model("sentiment")

        def run(way: RunningBackend, number: int) -> Outcome:
            return run_closed(way, calls(texts, info), connections=number, duration=duration)

        for number in clients:
            measured: dict[str, list[Outcome]] = {}
            for _ in range(rounds):
                for way in ("narrow", "wide", "adaptive"):
                    measured.setdefault(way, []).append(run(running[way], number))
            show(f"Threads {number}: clients {number}", rows(measured), {}, this_machine())


def weigh() -> None:
    """Print what a backend with one session weighs beside one with a wide and two narrow.

    Each runs alone, after a start that packed the weights, so that none shares pages with another.
    """
    texts = iter(sentences(100_000, seed=5))
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder)
        build_demo_models(models, print)
        with backend(models):
            pass
        weights: list[float] = []
        for what, settings in _SESSIONS.items():
            with backend(models, **settings) as running:
                info = running.model("sentiment")
                for connections in (1, 8):
                    bodies = calls(texts, info)
                    run_closed(running, bodies, connections=connections, duration=3.0)
                weights.append(resident_mib(running.pid))
            print(f"{what}: {weights[-1]:.0f} MiB (PSS), {weights[-1] / weights[0]:.2f}")
