"""Measures Sluicegate's backend and its peers on the same sentences, one server at a time."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
import msgspec

from backends.model_tools.demo.build import build_demo_models
from loadtests.backend import backend, calls
from loadtests.generator import Outcome, Target, closed_loop
from loadtests.harness.system import System
from loadtests.machine import this_machine
from loadtests.padded import write_padded
from loadtests.peers.configuration import PeerConfiguration
from loadtests.peers.servers import PEERS, TRIED, Peer, PeerFailed, running
from loadtests.peers.table import check_answers, lines, markdown
from loadtests.workload import sentences

Body = Callable[[str], bytes]
Bodies = Callable[[list[str]], Iterator[bytes]]
Scores = Callable[[bytes], list[float]]

_LABEL = re.compile(rb'"label":"(\w+)","score":([\d.e-]+)')
_CHECKED, _WARMING = 20, 200
_GATEWAY = "Sluicegate, through the gateway"
_BACKEND = "Sluicegate, its backend over HTTP"


class Measurement:
    """Measures all servers in turns, each run on new sentences."""

    def __init__(self, models: Path, *, connections: int, count: int) -> None:
        self._models = models
        self._exported = _exported(models)
        self._connections = connections
        self._count = count
        self._seed = 100
        self._checked = sentences(_CHECKED, seed=99)
        self.measured: dict[str, list[Outcome]] = {}
        self.failures: dict[str, str] = {}
        self.answers: dict[str, list[list[float]]] = {}

    def gateway(self, data: Path) -> None:
        """Run the whole system."""
        with System(data, models=self._models) as system:
            headers = (("authorization", f"Bearer {system.key}"),)
            target = Target(
                host="127.0.0.1", port=system.port, path="/v1/classify", headers=headers
            )
            self._ask(_GATEWAY, target, _request, _scores)
            self._run(_GATEWAY, target, lambda texts: map(_request, texts))

    def backend(self) -> None:
        """Run a backend alone."""
        with backend(self._models) as started:
            info = started.model("sentiment")
            self._ask(_BACKEND, started.target, lambda text: next(calls([text], info)), _scores)
            self._run(_BACKEND, started.target, lambda texts: calls(texts, info))

    def peer(self, peer: Peer, way: PeerConfiguration) -> None:
        """Run a peer in one configuration, and record why it does not start."""
        what = f"{peer.label}: {way.label}"
        try:
            with running(peer, way, self._exported) as target:
                self._ask(what, target, peer.body, peer.scores)
                self._run(what, target, lambda texts: map(peer.body, texts))
        except PeerFailed as error:
            self.failures[what] = str(error)

    def _ask(self, what: str, target: Target, body: Body, scores: Scores) -> None:
        headers = dict(target.headers) | {"content-type": "application/json"}
        url = f"http://{target.host}:{target.port}{target.path}"
        with httpx.Client(headers=headers) as client:
            answered = [client.post(url, content=body(text)) for text in self._checked]
        self.answers[what] = [scores(a.raise_for_status().content) for a in answered]

    def _run(self, what: str, target: Target, bodies: Bodies) -> None:
        self._seed += 1
        texts = iter(sentences(_WARMING + self._count, seed=self._seed))
        loop = partial(closed_loop, target, connections=self._connections, duration=60)
        asyncio.run(loop(bodies(list(islice(texts, _WARMING)))))
        self.measured.setdefault(what, []).append(asyncio.run(loop(bodies(list(texts)))))


def measure(*, peers: tuple[str, ...], connections: int, count: int, rounds: int) -> None:
    """Measure each peer in its ways beside Sluicegate; print the table.

    Raises:
        AnswersDiffer: the servers do not the same work; no table is printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        build_demo_models(models, print)
        run = Measurement(models, connections=connections, count=count)
        for number in range(rounds):
            run.backend()
            run.gateway(Path(folder) / f"data-{number}")
            for name in peers:
                for way in PEERS[name].ways:
                    run.peer(PEERS[name], way)
    _show(run, f"Peers {' '.join(peers)}: {connections} connections, {rounds} rounds")


def tune(*, peers: tuple[str, ...], connections: int, count: int) -> None:
    """Run each peer once in every way worth trying; print the table."""
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "models"
        build_demo_models(models, print)
        run = Measurement(models, connections=connections, count=count)
        run.backend()
        for name in peers:
            for way in TRIED:
                run.peer(PEERS[name], way)
    _show(run, f"Ways of {' '.join(peers)}: {connections} connections, one run each")


def _exported(models: Path) -> Path:
    """Return the models with the encoder as a common exporter writes it, for those who serve it."""
    target = models.parent / f"{models.name}-exported"
    shutil.copytree(models / "sentiment", target / "sentiment")
    shutil.copytree(models / "minilm", target / "minilm")
    write_padded(target / "minilm" / "1" / "model.onnx")
    return target


def _show(run: Measurement, title: str) -> None:
    check_answers(run.answers)
    table = lines(run.measured, run.failures)
    machine = this_machine()
    print(f"\n## {title}\n\n{machine.cpu}, {machine.cores} cores, {machine.date}, {machine.commit}")
    print(f"\n{markdown(table)}")
    slug = title.partition(":")[0].lower().replace(" ", "-")
    path = Path(__file__).parents[1] / "results" / f"{machine.date}-{slug}.json"
    result = {"title": title, "machine": machine, "lines": table}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


def _request(text: str) -> bytes:
    return msgspec.json.encode({"model": "sentiment", "input": text})


def _scores(body: bytes) -> list[float]:
    """Read the labels, which are JSON in a backend's reply as well."""
    found = {name: float(score) for name, score in _LABEL.findall(body)}
    return [found[b"negative"], found[b"positive"]]
