"""Measures rows per second of zero-shot requests of many rows beside one-row requests."""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

import click
import msgspec

from backends.protocol import Task, ZeroShotParameters
from loadtests.backend import RunningBackend, backend, calls
from loadtests.entailment import JUDGE, LABELS, ZERO_SHOT, write_entailment
from loadtests.generator import Outcome, Target, run_closed
from loadtests.measured import demo_models, metered, target_of
from loadtests.options import rounds
from loadtests.report import Row, show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import System

_TEMPLATE = "this text is about {}"

Pair = tuple[str, str]
Requests = Callable[[list[str], list[Pair]], tuple[Target, Iterator[bytes]]]
"""Makes requests of zero-shot texts or, where there are none, of pairs that are one row each."""


@click.command()
@click.option("--connections", default=64, help="Callers at once.")
@click.option("--count", default=300, help="Zero-shot requests of each run.")
@rounds(3)
def measure(*, connections: int, count: int, rounds: int) -> None:
    """Measure a backend over HTTP, then the whole path through the gateway.

    No text is asked twice, and the rows of both sides have the same lengths: the text of a single
    row is that of a zero-shot request, words mixed.
    """
    texts = iter(sentences(2 * count * rounds, seed=8))

    def compare(what: str, requests: Requests) -> list[Row]:
        own: list[str] = []

        def one() -> Outcome:
            own[:] = itertools.islice(texts, count)
            target, bodies = requests([], _single_rows(own))
            return run_closed(target, bodies, connections=connections)

        def many() -> Outcome:
            found = run_closed(*requests(own, []), connections=connections)
            rows = {status: len(LABELS) * number for status, number in found.statuses.items()}
            return msgspec.structs.replace(found, statuses=rows)

        variants = {
            f"{what}: requests of one row": metered(one),
            f"{what}: zero-shot requests of {len(LABELS)} labels": metered(many),
        }
        return table_of(in_turns(variants, rounds))

    with demo_models() as models:
        write_entailment(models)
        with backend(models) as running:
            table = compare("a backend", lambda texts, pairs: _calls(running, texts, pairs))
        with System(models.parent / "data", models=models) as system:
            table += compare("the gateway", lambda texts, pairs: _requests(system, texts, pairs))
    show(f"Rows: {connections} connections, rates of rows", table)


def _single_rows(texts: Iterable[str]) -> list[Pair]:
    """Return as many pairs as the zero-shot requests have rows, of the same lengths."""
    chooser = random.Random(5)
    pairs = []
    for text in texts:
        words = text.split()
        for label in LABELS:
            chooser.shuffle(words)
            pairs.append((" ".join(words), _TEMPLATE.format(label)))
    chooser.shuffle(pairs)
    return pairs


def _calls(
    running: RunningBackend, texts: list[str], pairs: list[Pair]
) -> tuple[Target, Iterator[bytes]]:
    if pairs:
        return running.target, calls(pairs, running.model(JUDGE), remaining=60.0)
    parameters = ZeroShotParameters(labels=LABELS, hypothesis_template=_TEMPLATE)
    model = running.model(ZERO_SHOT)
    bodies = calls(texts, model, task=Task.ZERO_SHOT, parameters=parameters, remaining=60.0)
    return running.target, bodies


def _requests(
    system: System, texts: list[str], pairs: list[Pair]
) -> tuple[Target, Iterator[bytes]]:
    path, model = ("/v1/zero-shot", ZERO_SHOT) if texts else ("/v1/classify", JUDGE)
    labels = {"labels": LABELS, "hypothesis_template": _TEMPLATE} if texts else {}
    inputs: Sequence[object] = texts or [[pair] for pair in pairs]
    bodies = [msgspec.json.encode({"model": model, "input": each} | labels) for each in inputs]
    return target_of(system, path, x_request_timeout="60"), iter(bodies)
