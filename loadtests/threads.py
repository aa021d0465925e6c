"""Adaptive threads beside fixed ones, at several numbers of clients; and what sessions weigh."""

import contextlib
import tempfile
from pathlib import Path

from backends.demo.build import build_demo_models
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.generator import Outcome
from loadtests.machine import resident_mib, this_machine
from loadtests.report import rows, show
from loadtests.workload import sentences

_WAYS = {"adaptive": "auto", "wide": "always", "narrow": "never"}


def measure(*, clients: tuple[int, ...], duration: float, rounds: int) -> None:
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
            used = {way: resident_mib(process.pid) for way, process in running.items()}
            show(f"Threads {number}: clients {number}", rows(measured), used, this_machine())
