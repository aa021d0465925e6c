"""Compares memory hits through dialects' routes with memory hits through the native route."""

import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path

import click
import msgspec

from loadtests import wrk
from loadtests.hit import FAST, Load, candidate, start_systems
from loadtests.measured import fill, target_of
from loadtests.options import connections, duration, rounds
from loadtests.report import Row, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences

_TEXTS = 100
_PATHS = {"native": "/v1/embed", "OpenAI": "/v1/embeddings"}


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure memory hits of OpenAI's embeddings route and of the native route."""
    wrk.require()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (system,) = start_systems(stack, root, [], ways=[FAST]).values()
        load = Load(root, connections, duration, [system])
        for texts, form in product((1, 4), ("float", "base64")):
            bodies = _bodies(texts, form)
            runs = {}
            for name, path in _PATHS.items():
                fill(system, bodies, path)
                there = candidate(system)._replace(target=target_of(system, path))
                runs[f"{name}, {form}, texts a request: {texts}"] = partial(load.run, there, bodies)
            rows += table_of(in_turns(runs, rounds))
    show("Hits of dialects: ratios are to the native route above", rows)


def _bodies(texts: int, form: str) -> list[bytes]:
    """Return requests of `texts` texts each that ask for vectors in the form `form`."""
    known = sentences(_TEXTS, seed=1)
    several = [known[at : at + texts] for at in range(0, _TEXTS, texts)]
    fields: dict[str, object] = {"model": "minilm", "encoding_format": form}
    inputs = several if texts > 1 else known
    return [msgspec.json.encode(fields | {"input": each}) for each in inputs]
