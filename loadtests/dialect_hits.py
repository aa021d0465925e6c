"""Measures memory hits of dialects' routes beside those of the native route."""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import click
import msgspec

from loadtests import wrk
from loadtests.generator import Target
from loadtests.hit import OTHERS, settle, start_systems
from loadtests.machine import processor_seconds, this_machine
from loadtests.options import connections, duration, rounds
from loadtests.workload import sentences

_WAY = "memory hit, fast path"
_TEXTS = 100
_MODEL = "minilm"


class _Asked(NamedTuple):
    """A route with the fields of its bodies beside model and input, and the texts of each."""

    what: str
    path: str
    fields: dict[str, Any]
    texts: int = 1

    def bodies(self) -> list[bytes]:
        """Return what is sent; each text of them is the same for all routes."""
        texts = sentences(_TEXTS, seed=1)
        several = [texts[at : at + self.texts] for at in range(0, _TEXTS, self.texts)]
        return [
            msgspec.json.encode(
                {"model": _MODEL, "input": one if self.texts > 1 else one[0]} | self.fields
            )
            for one in several
        ]


_FLOATS, _BASE64 = {"encoding_format": "float"}, {"encoding_format": "base64"}
_NATIVE = "/v1/embed"
_ROUTES = (
    _Asked("native, floats", _NATIVE, _FLOATS),
    _Asked("OpenAI, floats", "/v1/embeddings", _FLOATS),
    _Asked("native, base64", _NATIVE, _BASE64),
    _Asked("OpenAI, base64", "/v1/embeddings", _BASE64),
    _Asked("native, floats, 4 texts", _NATIVE, _FLOATS, 4),
    _Asked("OpenAI, floats, 4 texts", "/v1/embeddings", _FLOATS, 4),
    _Asked("native, base64, 4 texts", _NATIVE, _BASE64, 4),
    _Asked("OpenAI, base64, 4 texts", "/v1/embeddings", _BASE64, 4),
)


@click.command()
@connections
@duration(5.0)
@rounds(5)
def measure(*, connections: int, duration: float, rounds: int) -> None:
    """Measure the routes in turns, and print rates and the worker's processor time of a request."""
    if not wrk.is_installed():
        sys.exit("`wrk` is needed; `make install-system` installs it")
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    lengths: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        (system,) = start_systems(stack, root, [], ways=[_WAY]).values()
        worker = [process.pid for process in system.processes("gateway")]
        headers = (("authorization", f"Bearer {system.key}"),)
        with system.client() as client:
            for asked in _ROUTES:
                for body in 2 * asked.bodies():
                    answer = client.post(asked.path, content=body).raise_for_status()
                    lengths[asked.what] = len(answer.content)
        for _ in range(rounds):
            for asked in _ROUTES:
                target = Target(
                    host="127.0.0.1", port=system.port, path=asked.path, headers=headers
                )
                before = sum(map(processor_seconds, worker))
                sent = wrk.send(
                    target,
                    asked.bodies(),
                    connections=connections,
                    duration=duration,
                    core=OTHERS,
                    folder=root,
                )
                used = sum(map(processor_seconds, worker)) - before
                settle([system])
                if sent.refused or sent.broken:
                    sys.exit(f"{asked.what}: {sent.refused} refused, {sent.broken} broken")
                rates.setdefault(asked.what, []).append(sent.rate)
                costs.setdefault(asked.what, []).append(1e6 * used / sent.requests)
    _show(rates, costs, lengths)
    print(this_machine())


def _show(
    rates: dict[str, list[float]], costs: dict[str, list[float]], lengths: dict[str, int]
) -> None:
    print("| route | requests/s | of native | µs of the worker | of native | bytes of an answer |")
    print("|---|---|---|---|---|---|")
    for native, dialect in zip(_ROUTES[::2], _ROUTES[1::2], strict=True):
        for asked in (native, dialect):
            rate, cost = median(rates[asked.what]), median(costs[asked.what])
            of_rate = rate / median(rates[native.what])
            of_cost = median(costs[native.what]) / cost
            print(
                f"| {asked.what} | {rate:,.0f} | {of_rate:.2f} | {cost:.1f} | {of_cost:.2f} "
                f"| {lengths[asked.what]} |"
            )
