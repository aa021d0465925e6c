"""Measures memory hits of dialects' routes beside those of the native route."""

import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import msgspec

from loadtests import wrk
from loadtests.hit import FAST, Load, candidate, start_systems
from loadtests.measured import fill, target_of
from loadtests.options import connections, duration, rounds
from loadtests.report import heading, print_table
from loadtests.turns import in_turns
from loadtests.workload import sentences

_TEXTS = 100


class _Asked(NamedTuple):
    """A route with the form of its vectors, and the texts of each request."""

    what: str
    path: str
    form: str
    texts: int = 1

    def bodies(self) -> list[bytes]:
        """Return the requests; all routes have the same texts."""
        texts = sentences(_TEXTS, seed=1)
        several = [texts[at : at + self.texts] for at in range(0, _TEXTS, self.texts)]
        fields: dict[str, Any] = {"model": "minilm", "encoding_format": self.form}
        inputs = several if self.texts > 1 else texts
        return [msgspec.json.encode(fields | {"input": each}) for each in inputs]


_PATHS = {"native": "/v1/embed", "OpenAI": "/v1/embeddings"}
_ROUTES = [
    [
        _Asked(f"{name}, {form}{', 4 texts' if texts > 1 else ''}", path, form, texts)
        for name, path in _PATHS.items()
    ]
    for texts in (1, 4)
    for form in ("float", "base64")
]


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure memory hits of OpenAI's embeddings beside those of the native route."""
    wrk.require()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (system,) = start_systems(stack, root, [], ways=[FAST]).values()
        load = Load(root, connections, duration, [system])
        worker, lengths, variants = candidate(system), {}, {}
        for asked in (each for pair in _ROUTES for each in pair):
            lengths[asked.what] = len(fill(system, asked.bodies(), asked.path)[-1])
            there = worker._replace(target=target_of(system, asked.path))
            variants[asked.what] = partial(load.run, there, asked.bodies())
        runs = in_turns(variants, rounds)
    for what, each in runs.items():
        if any(run.sent.refused or run.sent.broken for run in each):
            raise click.ClickException(f"not every request was answered: {what}")
    rates = {what: median(run.sent.rate for run in each) for what, each in runs.items()}
    costs = {what: median(run.costs.server for run in each) for what, each in runs.items()}
    heading("Hits of dialects")
    columns = ("route", "requests/s", "of native", "µs of the worker", "of native", "bytes")
    print_table(
        columns,
        [
            (
                *(asked.what, f"{rates[asked.what]:,.0f}"),
                f"{rates[asked.what] / rates[native.what]:.2f}",
                f"{costs[asked.what]:.1f}",
                f"{costs[native.what] / costs[asked.what]:.2f}",
                lengths[asked.what],
            )
            for native, dialect in _ROUTES
            for asked in (native, dialect)
        ],
    )
