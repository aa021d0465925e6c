"""Measures the rows a second of zero-shot requests with many rows, and of one-row requests."""

import itertools
import random
from collections.abc import Iterable, Iterator

import click
import msgspec

from loadtests.entailment import JUDGE, LABELS, ZERO_SHOT, write_entailment
from loadtests.generator import Outcome, run_closed
from loadtests.measured import backends_of, demo_models, metered, target_of
from loadtests.options import rounds
from loadtests.report import show, table_of
from loadtests.turns import in_turns
from loadtests.workload import sentences
from testing.system import System

_TEMPLATE = "this text is about {}"


@click.command()
@click.option("--connections", default=64, help="Callers at once.")
@click.option("--count", default=300, help="Number of zero-shot requests in a run.")
@rounds(3)
def measure(*, connections: int, count: int, rounds: int) -> None:
    """Measure both kinds of requests in each round, through the gateway.

    No text is sent twice. The rows of both kinds have the same lengths, because the text of a
    one-row request has the words of a zero-shot request's text in another order.
    """
    texts = iter(sentences(count * rounds, seed=8))
    own: list[str] = []
    with demo_models() as models:
        write_entailment(models)
        with System(models.parent / "data", models=models) as system:

            def one() -> Outcome:
                own[:] = itertools.islice(texts, count)
                target = target_of(system, "/v1/classify", x_request_timeout="60")
                return run_closed(target, _single_rows(own), connections=connections)

            def many() -> Outcome:
                target = target_of(system, "/v1/zero-shot", x_request_timeout="60")
                found = run_closed(target, _zero_shot(own), connections=connections)
                rows = {status: len(LABELS) * each for status, each in found.statuses.items()}
                return msgspec.structs.replace(found, statuses=rows)

            backends = [each.pid for each in backends_of(system)]
            variants = {
                "requests of one row": metered(one, server=backends),
                f"zero-shot requests of {len(LABELS)} labels": metered(many, server=backends),
            }
            turns = in_turns(variants, rounds)
    show(f"Rows: {connections} connections, rates and costs of rows", table_of(turns))


def _single_rows(texts: Iterable[str]) -> Iterator[bytes]:
    """Return a one-row request for each row of the zero-shot requests, with the same length."""
    chooser = random.Random(5)
    pairs = []
    for text in texts:
        words = text.split()
        for label in LABELS:
            chooser.shuffle(words)
            pairs.append((" ".join(words), _TEMPLATE.format(label)))
    chooser.shuffle(pairs)
    return iter([msgspec.json.encode({"model": JUDGE, "input": [pair]}) for pair in pairs])


def _zero_shot(texts: Iterable[str]) -> Iterator[bytes]:
    fields = {"model": ZERO_SHOT, "labels": LABELS, "hypothesis_template": _TEMPLATE}
    return iter([msgspec.json.encode(fields | {"input": text}) for text in texts])
