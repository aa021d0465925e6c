"""Compares guards with separate requests, with Presidio, and with pipelines of transformers.

Three classifiers are heads over the demo's encoder. A guard with all three is compared with three
requests for each text: with the row cache, so that the later ones find the encoder's row, and
without it, as if each classifier had an encoder of its own. Pipelines of transformers compute the
same three classifiers by torch.

A guard with six formats is compared with Presidio's recognizers of the same kinds, which run by
patterns over a blank pipeline of spaCy. Presidio finds more with a language model and with words of
the context; neither is compared, because a guard has no such detectors.

Latencies are measured at half of two rates. With as many connections as cores, each text has a core
for itself. With more, texts share batches, which takes half as much time for each: at half of that
rate few texts share a batch, and the cores are far more than half busy.

The answers are compared first. Both peers run behind FastAPI, without a cache. On a busy machine,
look at the servers' processor time rather than at rates.
"""

import contextlib
import itertools
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import msgspec

from loadtests.bare_server import bare_model
from loadtests.bare_sessions import BareSessions
from loadtests.generator import CALLERS, OK, Outcome, Target, run_closed
from loadtests.measured import demo_models, metered, target_of
from loadtests.open_loop import outcome, run_open
from loadtests.options import rounds
from loadtests.peers.answers import check_answers
from loadtests.peers.configuration import PUBLISHED, PeerConfiguration
from loadtests.peers.measure import Server, Work, answers_of, family, served_peer
from loadtests.peers.servers import Peer, PeerFailed
from loadtests.report import Turn, show, table_of
from loadtests.turns import in_turns, middle
from loadtests.workload import sentences
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.wire.cores import usable_cores
from sluicegate.wire.protocol import Task
from testing.model_repository import write_head, write_model
from testing.system import System

_CONFIG = Path(__file__).parents[1] / "config"
_HEADS = {"sentiment": ("negative", "positive"), "bench-tone": ("cold", "warm")}
_HEADS |= {"bench-length": ("long", "short")}
_FORMATS = ("email", "credit_card", "iban", "phone", "ip_address", "us_ssn")
# As Presidio finds them too.
_VALUES = (
    *("ada.b@example.com", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00"),
    *("+1 212 555 0134", "10.1.2.3", "536-22-8726"),
)
_REPEATED, _SECONDS = 100, 3.0
_LATE = 1000
"""The texts of a run that measures latencies: ten of them are later than its p99."""
_GUARDS = {
    "classifiers": {
        "model": "bench-detectors",
        "detectors": [
            {"kind": "classifier", "name": name, "model": name, "labels": dict.fromkeys(labels, 0)}
            for name, labels in _HEADS.items()
        ],
    },
    "formats": {
        "model": "bench-detectors",
        "detectors": [{"kind": "formats", "name": "formats", "formats": _FORMATS}],
    },
}
_PEER = Peer(
    label="",
    environment="guards",
    command=("python", "-m", "loadtests.peers.guards.server"),
    body=lambda text: {"text": text},
    values=lambda found: found,
    ways=(),
)
_WAY = PeerConfiguration(workers=2, threads=1)
_PEERS = {
    "classifiers": ("transformers", replace(_WAY, options=" ".join(_HEADS))),
    "formats": ("Presidio", _WAY),
}


@click.command("guards")
@click.option("--count", default=1000, help="Number of texts in each run.")
@rounds(3)
def measure_guards(*, count: int, rounds: int) -> None:
    """Compare guards with separate requests, with Presidio and with pipelines of transformers."""
    with _models() as work, contextlib.ExitStack() as stack:
        folder = work.served.parent
        config = Path(shutil.copytree(_CONFIG, folder / "config"))
        document = config / "models.yaml"
        declared = "".join(  # JSON is YAML
            f"  {name}: {msgspec.json.encode(guard).decode()}\n" for name, guard in _GUARDS.items()
        )
        document.write_text(document.read_text().replace("\nguards:\n", f"\nguards:\n{declared}"))
        shared, alone = (
            stack.enter_context(
                System(
                    folder / f"data-{size}",
                    models=work.served,
                    config=config,
                    environment={"SLUICEGATE_BACKEND_ROW_CACHE_BYTES": str(size)},
                )
            )
            for size in (64 << 20, 0)
        )
        _compare_with_requests(shared, alone, work, count, rounds)
        for guard, (peer, way) in _PEERS.items():
            try:
                with served_peer(work, _PEER, way) as server:
                    _compare_with_peer(guard, _guard(shared, guard), peer, server, count, rounds)
            except PeerFailed as error:
                print(f"left out: {peer}: {error}")


@contextlib.contextmanager
def _models() -> Iterator[Work]:
    """Write the demo's models, two heads and the guards' model; and what the peers read."""
    with demo_models() as models:
        for name, labels in _HEADS.items():
            if not (models / name).exists():
                own = {"encoder": "minilm", "normalize_input": True}
                write_head(models, name, list(labels), dimensions=384, **own)
        manifest = {"kind": "algorithm", "algorithm": "guard", "tasks": ["guard"]}
        write_model(models, "bench-detectors", manifest | {"uses": list(_HEADS)})
        exported = models.parent / "exported"
        for name in _HEADS:
            shutil.copytree(models / name, exported / name)
        (exported / PUBLISHED).symlink_to(find_source())
        yield Work(served=models, exported=exported)


def _compare_with_requests(
    shared: System, alone: System, work: Work, count: int, rounds: int
) -> None:
    """Compare a guard with a request to each of its classifiers."""
    guard = _guard(shared, "classifiers")
    texts = iter(sentences(count * (3 * rounds + 1), seed=5))

    def separately(system: System) -> Outcome:
        # A model at a time: equal rows that are in flight together would be computed once.
        asked = itertools.product(_HEADS, list(itertools.islice(texts, count)))
        bodies = (msgspec.json.encode({"model": name, "input": text}) for name, text in asked)
        found = run_closed(target_of(system), bodies)
        answered = {status: each // len(_HEADS) for status, each in found.statuses.items()}
        return msgspec.structs.replace(found, statuses=answered)

    def guarded() -> Outcome:
        return run_closed(guard.target, map(guard.body, itertools.islice(texts, count)))

    variants = {
        "a guard with three classifiers": metered(guarded, server=guard.pids),
        "three requests, of which two find the row": metered(
            partial(separately, shared), server=guard.pids
        ),
        "three requests, which compute a row each": metered(
            partial(separately, alone), server=_serving(alone)
        ),
    }
    turns = in_turns(variants, rounds)
    show(f"Guards and requests: {CALLERS} connections, new texts", table_of(turns))
    most = middle(turns["a guard with three classifiers"], _rate).outcome.rate
    cores = usable_cores()
    bodies = map(guard.body, sentences(count, seed=8))
    apart = run_closed(guard.target, bodies, connections=cores).rate
    for connections, rate in ((cores, apart), (CALLERS, most)):
        _compare_latencies(guard, work.served / "minilm" / "1", connections, rate / 2, rounds)


def _compare_latencies(
    guard: Server, encoder: Path, connections: int, rate: float, rounds: int
) -> None:
    """Send texts at random times to a guard, and to a server that only runs its encoder.

    `rate` is half of the guard's rate at so many connections. The last line is the encoder alone,
    one text at a time: the model's own time.
    """
    graph, tokenizer = encoder / "model.onnx", encoder / "tokenizer.json"
    alone = BareSessions(graph, tokenizer, rows=1)
    texts = iter(sentences(4 * _LATE * rounds, seed=100 + connections))

    def steady(target: Target) -> Outcome:
        duration = _LATE / rate
        answers = run_open(target, map(guard.body, texts), rate=rate, duration=duration)
        return outcome(answers, duration)

    def one_by_one() -> Outcome:
        times = []
        for batch in alone.batches(list(itertools.islice(texts, _LATE))):
            started = time.perf_counter()
            alone.run_batch(batch)
            times.append(time.perf_counter() - started)
        return Outcome(duration=sum(times), statuses={OK: len(times)}, latencies=sorted(times))

    with bare_model(graph, tokenizer) as bare:
        variants = {
            "a guard with three classifiers": metered(
                partial(steady, guard.target), server=guard.pids
            ),
            "a bare session behind HTTP": metered(partial(steady, bare.target), server=[bare.pid]),
            "a bare session, one text at a time": metered(one_by_one),
        }
        turns = in_turns(variants, rounds)
    show(
        f"Latencies of guards at half of the rate of {connections} connections: random times",
        table_of(turns, by=lambda turn: turn.outcome.percentile(0.99)),
    )


def _compare_with_peer(
    guard: str, ours: Server, peer: str, theirs: Server, count: int, rounds: int
) -> None:
    """Compare a guard with a peer's answers, then with its rates for new and repeated texts.

    Raises:
        AnswersDiffer: the peer finds something else.
    """
    servers = {"a guard": ours, peer: theirs}
    checked = _texts(guard, 50, seed=7)
    expected, found = (answers_of(each, checked) for each in servers.values())
    tolerance = check_answers(expected, found, task=Task.EMBED, tolerance=1e-3)
    for kind in ("new", "repeated"):
        seeds = itertools.count(100)

        def run(server: Server, kind: str = kind, seeds: Iterator[int] = seeds) -> Outcome:
            if kind == "new":
                bodies = map(server.body, _texts(guard, count, seed=next(seeds)))
                return run_closed(server.target, bodies)
            popular = list(map(server.body, _texts(guard, _REPEATED, seed=7)))
            return run_closed(server.target, itertools.cycle(popular), duration=_SECONDS)

        turns = in_turns(
            {
                what: metered(
                    partial(run, server), server=[p for pid in server.pids for p in family(pid)]
                )
                for what, server in servers.items()
            },
            rounds,
        )
        note = f"The answers about {len(checked)} texts differ by {tolerance:.2g} at most."
        show(f"Guards of {guard} {kind} texts: {CALLERS} connections", table_of(turns), note)


def _texts(guard: str, count: int, *, seed: int) -> list[str]:
    """Return texts; those for formats have a value with a format each."""
    found, chooser = sentences(count, seed=seed), random.Random(seed)
    if guard == "classifiers":
        return found
    return [f"{text} {chooser.choice(_VALUES)} {chooser.choice(found)}" for text in found]


def _guard(system: System, guard: str) -> Server:
    """Return how a guard of a running system is asked, and how its findings are read."""
    names = [label for labels in _HEADS.values() for label in labels]

    def values(body: bytes) -> list[float]:
        (result,) = msgspec.json.decode(body)["results"]
        found = result["findings"]
        if guard == "classifiers":
            return [
                one["score"] for one in sorted(found, key=lambda one: names.index(one["label"]))
            ]
        places = [(one["start"], one["end"], _FORMATS.index(one["label"].lower())) for one in found]
        return [float(value) for place in sorted(places) for value in place]

    return Server(
        target=target_of(system, f"/v1/guard/{guard}"),
        body=lambda text: msgspec.json.encode({"input": text}),
        values=values,
        pids=_serving(system),
    )


def _serving(system: System) -> tuple[int, ...]:
    """Return the processes whose time a request takes: workers and backends."""
    return tuple(each.pid for role in ("gateway", "backend") for each in system.processes(role))


def _rate(turn: Turn) -> float:
    return turn.outcome.rate
