"""Measures Sluicegate and model servers on the same texts, one server at a time, in turns."""

import asyncio
import contextlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import httpx
import msgspec

from backends.executors.openvino_graph import computes_bf16
from backends.model_tools.demo.build import build_demo_models
from backends.model_tools.demo.source import find_source
from backends.protocol import Task
from loadtests.backend import backend, calls
from loadtests.generator import Target, closed_loop
from loadtests.padded import write_padded
from loadtests.peers.comparison import (
    OURS,
    Comparison,
    Effort,
    Figure,
    Kind,
    LeftOut,
    Run,
    Subject,
    Work,
    figures_of,
)
from loadtests.peers.configuration import PUBLISHED, PeerConfiguration
from loadtests.peers.hits import LITELLM, NGINX
from loadtests.peers.page import table
from loadtests.peers.servers import PEERS, Peer, PeerFailed, is_installed, running
from loadtests.rivals import nginx
from loadtests.workload import sentences
from testing.process_times import descendants
from testing.system import System

_LABEL = re.compile(rb'"label":"(\w+)","score":([\d.e-]+)')
_VECTOR = re.compile(rb'"embedding":(\[[^\]]*\])')
_CHECKED, _WARMING = 20, 200
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2}
"""Of scores, and of the components of vectors of length one."""
BACKEND, GATEWAY = "Sluicegate, its backend over HTTP", "Sluicegate, through the gateway"
_MODELS = {Task.CLASSIFY: "sentiment", Task.EMBED: "minilm"}
_NEW = 0.5
"""The share of mixed texts that are new."""
Results = tuple[list[Figure], list[LeftOut]]


class AnswersDiffer(Exception):
    """A server does other work than the first; the message says where."""


class Models(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's models as Sluicegate serves them, and as peers do."""

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
        work: Work,
        effort: Effort,
        *,
        beside: str,
        texts: Callable[..., list[str]] = sentences,
    ) -> None:
        self._models, self._effort = models, effort
        self.work = work
        self._beside = beside
        self._texts = texts
        self._seed = 100
        self._answers: list[list[float]] = []
        self.runs: dict[Subject, list[Run]] = {}
        self.failures: dict[Subject, str] = {}

    def backend(self) -> None:
        """Run a backend alone."""
        with backend(self._models.served, **self._models.settings) as started:
            info = started.model(_MODELS[self.work.task])
            bodies = partial(calls, info=info, task=self.work.task)
            self._check(started.target, lambda text: next(bodies([text])), self._read)
            self._run(self._subject(OURS, BACKEND), started.target, bodies, started.pid)

    def gateway(self, data: Path) -> None:
        """Run the whole system."""
        settings = self._models.settings.items()
        environment = {f"SLUICEGATE_BACKEND_{name.upper()}": value for name, value in settings}
        with System(data, models=self._models.served, environment=environment) as system:
            path = f"/v1/{self.work.task}"
            headers = (("authorization", f"Bearer {system.key}"),)
            target = Target(host="127.0.0.1", port=system.port, path=path, headers=headers)
            self._check(target, self._request, self._read)
            subject = self._subject(OURS, GATEWAY)
            self._run(subject, target, partial(map, self._request), system.pid)

    def peer(self, peer: Peer, way: PeerConfiguration, *, cached: bool = False) -> None:
        """Run a peer in one configuration; record why it does not start, or is not timed.

        With `cached` it is behind nginx with Lua, which keeps answers in its memory.
        """
        name, before = (NGINX, "nginx + Lua before ") if cached else (peer.name, "")
        subject = self._subject(name, f"{before}{peer.label}: {way.label}")
        if way.precision != self._models.precision or subject in self.failures:
            return
        call, pids = peer.calls[self.work.task], []
        try:
            with contextlib.ExitStack() as stack:
                target, pid = stack.enter_context(
                    running(peer, way, self._models.exported, self.work.task)
                )
                pids.append(pid)
                if cached:
                    target, pid = stack.enter_context(_caching(target))
                    pids.append(pid)
                self._check(target, call.body, call.values)
                self._run(subject, target, partial(map, call.body), *pids)
        except (PeerFailed, AnswersDiffer, httpx.HTTPError) as error:
            self.failures[subject] = str(error)

    def results(self, source: str) -> Results:
        """Return the figures of all, and who has none."""
        left_out = [
            LeftOut(work=self.work, peer=subject.peer, what=subject.what, reason=reason)
            for subject, reason in self.failures.items()
        ]
        return figures_of(self.work, self.runs, source), left_out

    def _subject(self, peer: str, what: str) -> Subject:
        return Subject(peer=peer, what=what, beside=self._beside)

    def _check(
        self, target: Target, body: Callable[[str], bytes], values: Callable[[bytes], list[float]]
    ) -> None:
        """Compare answers with the first server's.

        Raises:
            AnswersDiffer: they are others.
        """
        headers = dict(target.headers) | {"content-type": "application/json"}
        url = f"http://{target.host}:{target.port}{target.path}"
        with httpx.Client(headers=headers, timeout=60) as client:
            asked = sentences(_CHECKED, seed=99)
            answered = [client.post(url, content=body(text)) for text in asked]
        found = [values(answer.raise_for_status().content) for answer in answered]
        self._answers = self._answers or found
        check_answers(self._answers, found, self.work)

    def _run(
        self,
        subject: Subject,
        target: Target,
        bodies: Callable[[list[str]], Iterator[bytes]],
        *pids: int,
    ) -> None:
        self._seed += 1
        texts = self._texts(_WARMING + self._effort.count, seed=self._seed)
        loop = partial(closed_loop, target, connections=self._effort.connections, duration=60)
        asyncio.run(loop(bodies(texts[:_WARMING])))
        before = sum(map(_busy, pids))
        outcome = asyncio.run(loop(bodies(texts[_WARMING:])))
        busy = (sum(map(_busy, pids)) - before) / max(1, len(outcome.latencies))
        run = Run(
            rate=round(outcome.rate, 1),
            p50=round(outcome.percentile(0.5) * 1000, 1),
            p95=round(outcome.percentile(0.95) * 1000, 1),
            busy=round(busy * 1000, 3),
        )
        self.runs.setdefault(subject, []).append(run)

    def _request(self, text: str) -> bytes:
        return msgspec.json.encode({"model": _MODELS[self.work.task], "input": text})

    def _read(self, body: bytes) -> list[float]:
        """Read the vector, or the scores: they are JSON in a backend's reply as well."""
        if self.work.task is Task.EMBED:
            (vector,) = _VECTOR.findall(body)
            return msgspec.json.decode(vector, type=list[float])
        found = {name: float(score) for name, score in _LABEL.findall(body)}
        return [found[b"negative"], found[b"positive"]]


def check_answers(expected: list[list[float]], found: list[list[float]], work: Work) -> None:
    """Return when each text has the same label, and values that are near the expected ones.

    Raises:
        AnswersDiffer: one has not.
    """
    if list(map(len, found)) != list(map(len, expected)):
        raise AnswersDiffer(f"{len(found)} answers of other sizes than the {len(expected)} of ours")
    for number, (row, wanted) in enumerate(zip(found, expected, strict=True)):
        far = max(abs(a - b) for a, b in zip(row, wanted, strict=True))
        is_other = work.task is Task.CLASSIFY and row.index(max(row)) != wanted.index(max(wanted))
        if is_other or not far <= _TOLERANCES[work.precision]:  # nor is NaN within it
            raise AnswersDiffer(f"answers differ by {far:.4f} at {number}")


def measure_misses(
    peers: tuple[str, ...], effort: Effort, *, source: str = "", tuned: bool = False
) -> Results:
    """Measure each peer at each task in each precision, beside Sluicegate's two servers.

    With `tuned` in all configurations that are worth trying.

    Raises:
        AnswersDiffer: the gateway does not give what its backend gives.
    """
    figures, left_out = list[Figure](), list[LeftOut]()
    with tempfile.TemporaryDirectory() as scratch:
        for models in write_models(Path(scratch), effort.precisions):
            for task in effort.tasks:
                work = Work(kind=Kind.MISSES, task=task, precision=models.precision)
                run = Measurement(models, work, effort, beside=BACKEND)
                for number in range(effort.rounds):
                    run.backend()
                    run.gateway(Path(scratch) / f"data-{models.precision}-{task}-{number}")
                    for peer in (PEERS[name] for name in peers):
                        for way in peer.tried if tuned else peer.ways:
                            run.peer(peer, way)
                found = run.results(source)
                print(f"\n{task} {models.precision}\n")
                print("\n".join(table(found[0])), flush=True)
                figures += found[0]
                left_out += found[1]
    return figures, left_out


def measure_mixed(
    peers: tuple[str, ...], known: Comparison, effort: Effort, *, source: str
) -> Results:
    """Measure texts of which half repeat: the gateway, and the peer that is fastest at misses.

    No peer has a cache of its own for classifications: it is measured alone, and behind nginx with
    Lua, which keeps whole answers in its memory.
    """
    work = Work(kind=Kind.MIXED)
    found = fastest(known.figures, [PEERS[name] for name in peers if name in PEERS])
    caches = NGINX in peers and nginx.is_installed()
    missing = {
        (LITELLM, "LiteLLM", "it has no classification"): LITELLM in peers,
        (NGINX, "nginx + Lua", "not installed: `make install-system`"): NGINX in peers
        and not caches,
        ("any", "a model server", "none of those asked for is installed"): found is None,
    }
    with tempfile.TemporaryDirectory() as scratch:
        (models,) = write_models(Path(scratch), ("fp32",))
        run = Measurement(models, work, effort, beside=GATEWAY, texts=mixed_texts)
        for number in range(effort.rounds):
            run.gateway(Path(scratch) / f"data-{number}")
            if found is not None:
                run.peer(*found)
                if caches:
                    run.peer(*found, cached=True)
    figures, left_out = run.results(source)
    reasons = [
        LeftOut(work=work, peer=peer, what=what, reason=reason)
        for (peer, what, reason), is_missing in missing.items()
        if is_missing
    ]
    return figures, reasons + left_out


def mixed_texts(count: int, *, seed: int) -> list[str]:
    """Return `count` texts: each other one is new, on average, and the rest repeat earlier ones.

    The one that came n-th is repeated with a chance that falls as 1 / n.
    """
    chooser = random.Random(seed)
    unseen = sentences(count, seed=seed)
    seen, texts = list[str](), list[str]()
    for _ in range(count):
        if not seen or chooser.random() < _NEW:
            seen.append(unseen[len(seen)])
            texts.append(seen[-1])
        else:
            # The logarithm of such a rank is uniform.
            texts.append(seen[int((len(seen) + 1) ** chooser.random()) - 1])
    return texts


def fastest(
    known: Iterable[Figure], peers: Iterable[Peer]
) -> tuple[Peer, PeerConfiguration] | None:
    """Return the installed peer with the best known rate at classification, and its way.

    Where none has a rate it is the first one that is installed, in its first way.
    """
    ways = {
        f"{peer.label}: {way.label}": (peer, way)
        for peer in peers
        if is_installed(peer)
        for way in peer.ways
    }
    work = Work(kind=Kind.MISSES)
    rates = {each.what: each.rate for each in known if each.work == work and each.what in ways}
    best = max(rates, key=rates.__getitem__) if rates else next(iter(ways), None)
    return ways[best] if best is not None else None


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
    if "bf16" in precisions and not computes_bf16():
        print("This CPU computes no bf16: that is left out.")
    elif "bf16" in precisions:
        rounded = Path(shutil.copytree(served, root / "models-bf16"))
        manifest = rounded / "minilm" / "1" / "model.yaml"
        manifest.write_text(manifest.read_text().replace("profile: fp32", "profile: bf16"))
        yield Models(served=rounded, exported=exported, precision="bf16")


@contextlib.contextmanager
def _caching(target: Target) -> Iterator[tuple[Target, int]]:
    """Run nginx with Lua before a server; yield where it answers, and its process."""
    with tempfile.TemporaryDirectory() as scratch:
        upstream = f"{target.host}:{target.port}"
        with nginx.nginx("proxy", Path(scratch) / "nginx", upstream=upstream) as (port, pid):
            headers = (("authorization", f"Bearer {nginx.KEY}"),)
            yield Target(host="127.0.0.1", port=port, path=target.path, headers=headers), pid


def _busy(pid: int) -> float:
    """Return the processor time of a process and of all below it that still run, in seconds."""
    return sum(descendants(pid).values())
