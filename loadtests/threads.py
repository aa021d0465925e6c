"""Measures adaptive and fixed numbers of threads for a batch, and the memory of sessions."""

import contextlib
from collections.abc import Callable

import click

from loadtests.backend import RunningBackend, backend, calls
from loadtests.generator import Outcome, run_closed
from loadtests.machine import resident_mib
from loadtests.measured import demo_models, metered
from loadtests.options import duration, rounds
from loadtests.report import Line, Turn, show, table_of
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
@click.option("--weigh-only", is_flag=True, help="Measure only the memory of sessions.")
def measure(*, clients: str, duration: float, rounds: int, weigh_only: bool) -> None:
    """Measure adaptive and fixed numbers of threads for a batch, and the memory of sessions."""
    if not weigh_only:
        numbers = tuple(map(int, clients.split(",")))
        show("Threads", _compare(numbers, duration, rounds))
    show("Memory of sessions", _weigh())


def _compare(clients: tuple[int, ...], duration: float, rounds: int) -> list[Line]:
    """Measure the three settings of threads in each round, for each number of clients."""
    texts = iter(sentences(400_000, seed=4))
    lines: list[Line] = []
    with demo_models() as models, contextlib.ExitStack() as stack:
        running = {
            way: stack.enter_context(backend(models, wide=setting))
            for way, setting in _WAYS.items()
        }
        info = running["adaptive"].model("sentiment")

        def variant(way: RunningBackend, number: int) -> Callable[[], Turn]:
            def run() -> Outcome:
                bodies = calls(texts, info)
                return run_closed(way.target, bodies, connections=number, duration=duration)

            return metered(run, server=[way.pid])

        for number in clients:
            variants = {way: variant(each, number) for way, each in running.items()}
            turns = in_turns(variants, rounds)
            lines += [{"clients": number} | row.line() for row in table_of(turns)]
    return lines


def _weigh() -> list[Line]:
    """Return the memory of a backend with one session, and of one with three.

    A first start writes the packed weights, so that their writing does not distort the measured
    memory. The two backends do not run at the same time, because they would share the memory of
    these weights.
    """
    texts = iter(sentences(100_000, seed=5))
    lines: list[Line] = []
    with demo_models() as models:
        with backend(models):
            pass
        for what, settings in _SESSIONS.items():
            with backend(models, **settings) as running:
                bodies = calls(texts, running.model("sentiment"))
                for connections in (1, 8):
                    run_closed(running.target, bodies, connections=connections, duration=3.0)
                lines.append({"what": what, "MiB (PSS)": resident_mib(running.pid)})
    return lines
