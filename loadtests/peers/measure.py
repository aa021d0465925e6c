"""Measures Sluicegate and its peers on the same texts, one server at a time."""

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import httpx
import msgspec

from backends.executors.openvino_graph import computes_bf16
from backends.model_tools.demo.build import build_demo_models
from backends.model_tools.demo.source import find_source
from backends.protocol import Task
from loadtests.backend import backend, calls
from loadtests.generator import Outcome, Target, closed_loop
from loadtests.machine import this_machine
from loadtests.padded import write_padded
from loadtests.peers.configuration import PUBLISHED, PeerConfiguration
from loadtests.peers.process import PeerFailed, busy_with_children, running
from loadtests.peers.servers import PEERS, Peer
from loadtests.peers.table import (
    TOLERANCES,
    AnswersDiffer,
    PeerRow,
    PeerRun,
    check_answers,
    lines,
    markdown,
    verdict,
)
from loadtests.rivals import nginx
from loadtests.workload import sentences
from testing.system import System

Body = Callable[[str], bytes]
Bodies = Callable[[list[str]], Iterator[bytes]]
Values = Callable[[bytes], list[float]]
Texts = Callable[..., list[str]]

_LABEL = re.compile(rb'"label":"(\w+)","score":([\d.e-]+)')
_VECTOR = re.compile(rb'"embedding":(\[[^\]]*\])')
_CHECKED, _WARMING = 20, 200
OWN = 2
BACKEND = "Sluicegate, its backend over HTTP"
GATEWAY = "Sluicegate, through the gateway"
_MODELS = {Task.CLASSIFY: "sentiment", Task.EMBED: "minilm"}
_PATHS = {Task.CLASSIFY: "/v1/classify", Task.EMBED: "/v1/embed"}


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's models, the same to be computed in another precision, and what peers serve."""

    served: Path
    exported: Path
    precision: str = "fp32"

    @property
    def settings(self) -> dict[str, str]:
        """What a backend is told, beyond what is shipped."""
        return {} if self.precision == "fp32" else {"provider": "openvino"}


class Measurement:
    """Measures all servers at one task in turns, each run on new texts of `texts`."""

    def __init__(
        self,
        models: Models,
        *,
        task: Task,
        connections: int,
        count: int,
        texts: Texts = sentences,
    ) -> None:
        self._models = models
        self._task = task
        self._connections = connections
        self._count = count
        self._texts = texts
        self._seed = 100
        self._checked = sentences(_CHECKED, seed=99)
        self._answers: list[list[float]] = []
        self.measured: dict[str, list[PeerRun]] = {}
        self.failures: dict[str, str] = {}

    def backend(self) -> None:
        """Run a backend alone."""
        with backend(self._models.served, **self._models.settings) as started:
            info = started.model(_MODELS[self._task])
            bodies = partial(calls, info=info, task=self._task)
            self._ask(started.target, lambda text: next(bodies([text])), self._read)
            self._run(BACKEND, started.target, bodies, started.pid)

    def gateway(self, data: Path) -> None:
        """Run the whole system."""
        settings = {
            f"SLUICEGATE_BACKEND_{name.upper()}": value
            for name, value in self._models.settings.items()
        }
        with System(data, models=self._models.served, environment=settings) as system:
            headers = (("authorization", f"Bearer {system.key}"),)
            target = Target(
                host="127.0.0.1", port=system.port, path=_PATHS[self._task], headers=headers
            )
            self._ask(target, self._request, self._read)
            self._run(GATEWAY, target, lambda texts: map(self._request, texts), system.pid)

    def peer(self, peer: Peer, way: PeerConfiguration, *, cached: bool = False) -> None:
        """Run a peer in one configuration; record why it does not start, or is not timed.

        With `cached` it is behind nginx with Lua, which keeps answers in its memory.
        """
        what = f"nginx + Lua before {peer.label}" if cached else peer.label
        what = f"{what}: {way.label}"
        if way.precision != self._models.precision or what in self.failures:
            return
        call = peer.calls[self._task]
        try:
            with contextlib.ExitStack() as stack:
                started = stack.enter_context(running(peer, way, self._models.exported, self._task))
                target, pids = started.target, [started.pid]
                if cached:
                    target, pid = stack.enter_context(_caching(target))
                    pids.append(pid)
                self._ask(target, call.body, call.values)
                self._run(what, target, lambda texts: map(call.body, texts), *pids)
        except (PeerFailed, AnswersDiffer, httpx.HTTPError) as error:
            self.failures[what] = str(error)

    def table(self, *, own: int) -> list[PeerRow]:
        """Return the medians; the first `own` are what the others are compared with."""
        return lines(self.measured, self.failures, own=own)

    def show(self, title: str, folder: Path) -> None:
        """Print the table, and keep it in `folder`."""
        table = self.table(own=OWN)
        title = f"{self._task.value} {self._models.precision}, {title}"
        machine = this_machine()
        print(f"\n## {title}\n\n{machine.headline}\n")
        print(f"{markdown(table)}\n\n{verdict(table, own=OWN)}", flush=True)
        slug = re.sub(r"[^a-z0-9]+", "-", title.partition(":")[0].lower())
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{machine.date}-{slug}.json"
        result = {"title": title, "machine": machine, "lines": table}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")

    def _ask(self, target: Target, body: Body, values: Values) -> None:
        """Compare answers with the first server's.

        Raises:
            AnswersDiffer: they are others.
        """
        headers = dict(target.headers) | {"content-type": "application/json"}
        url = f"http://{target.host}:{target.port}{target.path}"
        with httpx.Client(headers=headers, timeout=60) as client:
            answered = [client.post(url, content=body(text)) for text in self._checked]
        found = [values(answer.raise_for_status().content) for answer in answered]
        self._answers = self._answers or found
        tolerance = TOLERANCES[self._models.precision]
        check_answers(self._answers, found, task=self._task, tolerance=tolerance)

    def _run(self, what: str, target: Target, bodies: Bodies, *pids: int) -> None:
        self._seed += 1
        texts = iter(self._texts(_WARMING + self._count, seed=self._seed))
        loop = partial(closed_loop, target, connections=self._connections, duration=60)
        asyncio.run(loop(bodies(list(islice(texts, _WARMING)))))
        before = sum(map(busy_with_children, pids))
        outcome: Outcome = asyncio.run(loop(bodies(list(texts))))
        used = sum(map(busy_with_children, pids)) - before
        busy = used / max(1, len(outcome.latencies))
        self.measured.setdefault(what, []).append(PeerRun(outcome=outcome, busy=busy))

    def _request(self, text: str) -> bytes:
        return msgspec.json.encode({"model": _MODELS[self._task], "input": text})

    def _read(self, body: bytes) -> list[float]:
        """Read the vector, or the scores: they are JSON in a backend's reply as well."""
        if self._task is Task.EMBED:
            (vector,) = _VECTOR.findall(body)
            return msgspec.json.decode(vector, type=list[float])
        found = {name: float(score) for name, score in _LABEL.findall(body)}
        return [found[b"negative"], found[b"positive"]]


def measure(
    *,
    peers: tuple[str, ...],
    tasks: tuple[Task, ...],
    precisions: tuple[str, ...],
    connections: int,
    count: int,
    rounds: int,
    folder: Path,
    tuned: bool = False,
) -> Iterator[tuple[Task, str, list[PeerRow]]]:
    """Measure each peer in its ways beside Sluicegate; yield the table of each task and precision.

    Tables are printed too, and kept in `folder`. With `tuned` the ways are all that are worth
    trying. A server that does not the same work is named and not timed.

    Raises:
        AnswersDiffer: the gateway does not give what its backend gives.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for models in write_models(Path(scratch), precisions):
            for task in tasks:
                run = Measurement(models, task=task, connections=connections, count=count)
                for number in range(rounds):
                    run.backend()
                    run.gateway(Path(scratch) / f"data-{models.precision}-{task.value}-{number}")
                    for peer in (PEERS[name] for name in peers):
                        for way in peer.tried if tuned else peer.ways:
                            run.peer(peer, way)
                kind = "Ways" if tuned else "Peers"
                run.show(
                    f"{kind} {' '.join(peers)}: {connections} connections, {count} sentences, "
                    f"{rounds} rounds",
                    folder,
                )
                yield task, models.precision, run.table(own=OWN)


@contextlib.contextmanager
def _caching(target: Target) -> Iterator[tuple[Target, int]]:
    """Run nginx with Lua before a server; yield where it answers, and its process."""
    with tempfile.TemporaryDirectory() as scratch:
        upstream = f"{target.host}:{target.port}"
        with nginx.nginx("proxy", Path(scratch) / "nginx", upstream=upstream) as (port, pid):
            headers = (("authorization", f"Bearer {nginx.KEY}"),)
            yield Target(host="127.0.0.1", port=port, path=target.path, headers=headers), pid


def write_models(root: Path, precisions: tuple[str, ...]) -> Iterator[Models]:
    """Write the models, with the encoder as a common exporter writes it for those who serve it."""
    served, exported = root / "models", root / "exported"
    build_demo_models(served, print)
    for name in _MODELS.values():
        shutil.copytree(served / name, exported / name)
    write_padded(exported / "minilm" / "1" / "model.onnx")
    (exported / PUBLISHED).symlink_to(find_source())
    if "fp32" in precisions:
        yield Models(served=served, exported=exported)
    if "bf16" not in precisions:
        return
    if not computes_bf16():
        print("This CPU computes no bf16: that is left out.")
        return
    rounded = Path(shutil.copytree(served, root / "models-bf16"))
    manifest = rounded / "minilm" / "1" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("profile: fp32", "profile: bf16"))
    yield Models(served=rounded, exported=exported, precision="bf16")
