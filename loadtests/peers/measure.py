"""Measures Sluicegate and model servers on the same texts, one server after another."""

import contextlib
import itertools
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import httpx
import msgspec

from loadtests.backend import backend, call
from loadtests.generator import Target, run_closed
from loadtests.measured import metered, target_of
from loadtests.models import write_padded
from loadtests.peers.answers import AnswersDiffer, check_answers, values_of
from loadtests.peers.configuration import PUBLISHED, PeerConfiguration
from loadtests.peers.servers import PEERS, Peer, PeerFailed, running
from loadtests.report import Row, Turn, show, table_of
from loadtests.rivals import nginx
from loadtests.turns import in_turns
from loadtests.workload import sentences
from sluicegate.backends.executors.openvino_graph import computes_bf16
from sluicegate.backends.model_tools.demo.build import build_demo_models
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.wire.protocol import Task
from testing.system import System

CONNECTIONS = 32
NGINX, LITELLM = "nginx", "litellm"
BACKEND, GATEWAY = "Sluicegate, its backend over HTTP", "Sluicegate, through the gateway"
_CHECKED, _WARMING = 20, 200
_TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2}
"""The largest allowed difference of scores, and of components of unit vectors."""
_MODELS = {Task.CLASSIFY: "sentiment", Task.EMBED: "minilm"}
_NEW = 0.5
"""The share of mixed texts that are new."""


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure: `count` texts a run, or hits for `duration` seconds."""

    count: int = 1500
    duration: float = 5.0
    rounds: int = 3
    tasks: tuple[Task, ...] = (Task.CLASSIFY, Task.EMBED)
    precisions: tuple[str, ...] = ("fp32", "bf16")
    keep: bool = False
    """Whether to keep the results. The results of a partial run or a dry run are not kept."""

    def show(self, title: str, rows: list[Row]) -> None:
        """Print a table, and keep it if that is wanted."""
        title = f"Peers {title}: {CONNECTIONS} connections, {self.rounds} rounds"
        show(title, rows, keep=self.keep)


DRY_RUN = Effort(count=100, duration=1.0, rounds=1, tasks=(Task.CLASSIFY,), precisions=("fp32",))


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The models as Sluicegate and its peers serve them, and the task and precision to measure."""

    served: Path
    exported: Path
    precision: str = "fp32"
    task: Task = Task.CLASSIFY


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A running server: its address, how to send it a text, and how to read its answer.

    `pids` are the processes of the server, and of a cache in front of the server. The processor
    time of their child processes is included.
    """

    target: Target
    body: Callable[[str], bytes]
    values: Callable[[bytes], list[float]]
    pids: tuple[int, ...]


Start = Callable[[], AbstractContextManager[Server]]


def measure_misses(peers: Sequence[str], effort: Effort) -> None:
    """Measure each peer, Sluicegate's backend and its gateway at each task in each precision.

    Raises:
        AnswersDiffer: the gateway's answers differ from its backend's answers.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for models, task in itertools.product(_write(Path(scratch), effort), effort.tasks):
            work = msgspec.structs.replace(models, task=task)
            servers: dict[str, Start] = {
                BACKEND: partial(_backend, work),
                GATEWAY: partial(_gateway, work),
            }
            for peer in map(PEERS.__getitem__, peers):
                for way in peer.ways:
                    if way.precision == work.precision:
                        servers[f"{peer.label}: {way.label}"] = partial(
                            served_peer, work, peer, way
                        )
            effort.show(f"misses {task} {work.precision}", compare(work, servers, effort))


def measure_mixed(peers: Sequence[str], effort: Effort) -> None:
    """Measure the gateway and the first installed peer with texts of which half repeat.

    No peer caches classifications. So the peer is measured twice: without a cache, and behind nginx
    with Lua, which keeps whole answers in its memory.
    """
    with tempfile.TemporaryDirectory() as scratch:
        (work,) = _write(Path(scratch), DRY_RUN)
        servers: dict[str, Start] = {GATEWAY: partial(_gateway, work)}
        installed = (PEERS[name] for name in peers if name in PEERS and PEERS[name].is_installed)
        if (peer := next(installed, None)) is None:
            print("left out: a model server: none of those asked for is installed")
        else:
            what = f"{peer.label}: {peer.ways[0].label}"
            servers[what] = partial(served_peer, work, peer, peer.ways[0])
            if NGINX in peers and nginx.is_installed():
                servers[f"nginx + Lua before {what}"] = partial(_cached, servers[what])
            elif NGINX in peers:
                print("left out: nginx + Lua: not installed: `make install-system`")
        effort.show("mixed", compare(work, servers, effort, texts=mixed_texts))


def compare(
    work: Work,
    servers: Mapping[str, Start],
    effort: Effort,
    *,
    texts: Callable[..., list[str]] = sentences,
) -> list[Row]:
    """Run all servers in each round, on new texts; name servers that fail or answer differently.

    Raises:
        AnswersDiffer: a server of Sluicegate answers differently from the first server.
    """
    failures: dict[str, str] = {}
    answers: list[list[float]] = []
    seeds = itertools.count(101)

    def run(what: str) -> Turn | None:
        if what in failures:
            return None
        try:
            with servers[what]() as server:
                found = answers_of(server, sentences(_CHECKED, seed=99))
                answers.extend([] if answers else found)
                tolerance = _TOLERANCES[work.precision]
                check_answers(answers, found, task=work.task, tolerance=tolerance)
                asked = texts(_WARMING + effort.count, seed=next(seeds))
                return _timed(server, asked)
        except (PeerFailed, AnswersDiffer, httpx.HTTPError) as error:
            if what in {BACKEND, GATEWAY}:
                raise
            failures[what] = str(error)
            return None

    runs = in_turns({what: partial(run, what) for what in servers}, effort.rounds)
    for what, reason in failures.items():
        print(f"left out: {what}: {reason}")
    done = {what: [run for run in each if run] for what, each in runs.items()}
    return table_of({what: each for what, each in done.items() if what not in failures})


def answers_of(server: Server, texts: Sequence[str]) -> list[list[float]]:
    """Return the values of a server's answers to some texts."""
    headers = dict(server.target.headers) | {"content-type": "application/json"}
    url = f"http://{server.target.host}:{server.target.port}{server.target.path}"
    with httpx.Client(headers=headers, timeout=60) as client:
        bodies = map(server.body, texts)
        answered = [client.post(url, content=body).raise_for_status() for body in bodies]
    return [server.values(answer.content) for answer in answered]


def _timed(server: Server, texts: list[str]) -> Turn:
    """Warm a server up, then run it; return the result and the processor time of a request."""
    bodies = map(server.body, texts)
    run_closed(server.target, itertools.islice(bodies, _WARMING), connections=CONNECTIONS)
    own, *others = (list(family(pid)) for pid in server.pids)
    run = partial(run_closed, server.target, bodies, connections=CONNECTIONS)
    return metered(run, server=own, others=[pid for each in others for pid in each])()


def family(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


@contextlib.contextmanager
def _backend(work: Work) -> Iterator[Server]:
    """Run Sluicegate's backend without a gateway."""
    with backend(work.served, **_settings(work)) as started:
        info = started.model(_MODELS[work.task])
        yield Server(
            target=started.target,
            body=lambda text: call([text], info, task=work.task),
            values=partial(values_of, work.task),
            pids=(started.pid,),
        )


@contextlib.contextmanager
def _gateway(work: Work) -> Iterator[Server]:
    """Run the whole system."""
    settings = _settings(work).items()
    environment = {f"SLUICEGATE_BACKEND_{name.upper()}": value for name, value in settings}
    with (
        tempfile.TemporaryDirectory() as folder,
        System(Path(folder) / "data", models=work.served, environment=environment) as system,
    ):
        model = _MODELS[work.task]
        yield Server(
            target=target_of(system, f"/v1/{work.task}"),
            body=lambda text: msgspec.json.encode({"model": model, "input": text}),
            values=partial(values_of, work.task),
            pids=(system.pid,),
        )


@contextlib.contextmanager
def served_peer(work: Work, peer: Peer, way: PeerConfiguration) -> Iterator[Server]:
    """Run a peer in one configuration."""
    with running(peer, way, work.exported, work.task) as (target, pid):
        yield Server(
            target=target,
            body=lambda text: msgspec.json.encode(peer.body(text)),
            values=lambda body: peer.values(msgspec.json.decode(body)),
            pids=(pid,),
        )


@contextlib.contextmanager
def _cached(start: Start) -> Iterator[Server]:
    """Run a server behind nginx with Lua."""
    with start() as server, tempfile.TemporaryDirectory() as scratch:
        upstream = f"{server.target.host}:{server.target.port}"
        with nginx.nginx("proxy", Path(scratch) / "nginx", upstream=upstream) as (port, pid):
            headers = (("authorization", f"Bearer {nginx.KEY}"),)
            target = msgspec.structs.replace(server.target, port=port, headers=headers)
            yield msgspec.structs.replace(server, target=target, pids=(*server.pids, pid))


def _settings(work: Work) -> dict[str, str]:
    """Return settings of a backend that differ from the defaults."""
    return {} if work.precision == "fp32" else {"provider": "openvino"}


def mixed_texts(count: int, *, seed: int) -> list[str]:
    """Return `count` texts, half of them new on average; the others repeat earlier texts.

    The n-th new text is repeated with a probability proportional to 1 / n.
    """
    chooser = random.Random(seed)
    unseen = iter(sentences(count, seed=seed))
    seen = [next(unseen)]
    texts = seen[:]
    while len(texts) < count:
        if chooser.random() < _NEW:
            seen.append(next(unseen))
            texts.append(seen[-1])
        else:
            # The logarithm of such a rank is uniformly distributed.
            texts.append(seen[int((len(seen) + 1) ** chooser.random()) - 1])
    return texts


def _write(root: Path, effort: Effort) -> Iterator[Work]:
    """Write the models, and the encoder also as common exporters write it, for the peers."""
    served, exported = root / "models", root / "exported"
    build_demo_models(served, print)
    for name in _MODELS.values():
        shutil.copytree(served / name, exported / name)
    write_padded(exported / "minilm" / "1" / "model.onnx")
    (exported / PUBLISHED).symlink_to(find_source())
    yield Work(served=served, exported=exported)
    if "bf16" in effort.precisions and not computes_bf16():
        print("This CPU computes no bf16: that is left out.")
    elif "bf16" in effort.precisions:
        rounded = Path(shutil.copytree(served, root / "models-bf16"))
        manifest = rounded / "minilm" / "1" / "model.yaml"
        manifest.write_text(manifest.read_text().replace("profile: fp32", "profile: bf16"))
        yield Work(served=rounded, exported=exported, precision="bf16")
