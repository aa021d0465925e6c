"""Plays the pods of `overlays/minimal` under podman, and kills, replaces and stops some of them."""

import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from typing_extensions import override

from loadtests.containers import images, podman
from loadtests.containers.images import PRESENT
from loadtests.containers.podman import execute, psql
from loadtests.containers.pods import PlayedPod, dependencies, pods, prepare, remove_everything
from loadtests.faults.catalogue import Fault, LoadSpec
from loadtests.faults.containers import create_keys
from loadtests.faults.judge import Window
from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import Topology, TopologyError, client_of
from testing.certificates import Authority
from testing.manifests import has_kubectl, render
from testing.waiting import wait_until

_PORT = 18090
_DATABASE = "postgresql+psycopg://sluicegate:for-the-check-alone@database/sluicegate"
_LOOK = 0.25


class Pods(Topology):
    """The pods of an overlay, and the services on which they depend."""

    oracle: RecordedAnswers

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.oracle = RecordedAnswers()
        self.addresses = [("127.0.0.1", _PORT)]
        self.own: dict[str, PlayedPod] = {}

    @override
    def start(self, stack: ExitStack) -> None:
        if lack := podman.missing() or ("" if has_kubectl() else "`kubectl` is missing"):
            raise TopologyError(lack)
        podman.prepare()
        images.build(PRESENT)
        contents = _contents_of_secrets(self.folder)
        self.own = {each.name: each for each in pods(render("minimal"), contents, tag=PRESENT)}
        prepare("sluicegate", contents["sluicegate"], self.folder)
        stack.callback(remove_everything)
        for pod in [*dependencies(), *self.own.values()]:
            pod.play(self.folder)
        # This replaces the Job, whose command waits for database and Redis.
        gateway = self.own["gateway-0"]
        execute(gateway.container("gateway"), "sluicegate", "ledger", "init")
        for pod in self.own.values():
            _until_ready(pod)
        key = contents["sluicegate"]["admin-key"]
        with client_of(f"http://{gateway.address()}:8081", key) as admin:
            self.keys = create_keys(admin, ("north", "south"))
        self.oracle.record(f"http://127.0.0.1:{_PORT}", self.keys["north"])

    @override
    def unwell(self) -> Sequence[str]:
        """Return the pods that are not live or not ready."""
        probes = ("livenessProbe", "readinessProbe")
        return [name for name, pod in self.own.items() if not all(map(pod.passes, probes))]

    @override
    def ask_ledger(self, query: str) -> list[list[str]]:
        return psql("kube-database-database", query, "--host=/tmp")


@contextmanager
def _kill(topology: Pods, part: str) -> Iterator[None]:
    _signal(topology.own[part].pids(), signal.SIGKILL)
    time.sleep(1.0)
    yield
    _until_ready(topology.own[part])


@contextmanager
def _replace(topology: Pods, part: str) -> Iterator[None]:
    topology.own[part].remove()
    topology.own[part].play(topology.folder)
    yield
    _until_ready(topology.own[part])


@contextmanager
def _freeze(topology: Pods, part: str) -> Iterator[None]:
    pod = topology.own[part]
    stopped = _all_processes(pod) if part.startswith("gateway") else pod.pids()
    _signal(stopped, signal.SIGSTOP)
    what = f"liveness of {part} fails while it is stopped"
    wait_until(lambda: not pod.passes("livenessProbe"), within=60.0, what=what, every=_LOOK)
    yield
    _signal(stopped, signal.SIGCONT)
    _until_ready(pod, "livenessProbe")


def _until_ready(pod: PlayedPod, probe: str = "readinessProbe") -> None:
    passes = partial(pod.passes, probe)
    wait_until(passes, within=90.0, what=f"{probe} of {pod.name} passes", every=_LOOK)


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        os.kill(pid, number)


def _all_processes(pod: PlayedPod) -> list[int]:
    """Return every process of a pod, parents before their children."""
    found = pod.pids()
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += map(int, children)
    return found


def _contents_of_secrets(folder: Path) -> dict[str, dict[str, str]]:
    """Return the secrets that operators must create, as docs/kubernetes.md says."""

    def pair(own: Authority, name: str, peers: Authority) -> dict[str, str]:
        chain, key = own.pair("tls", name)
        files = {"tls.crt": chain, "tls.key": key, "ca.crt": peers.ca}
        return {name: path.read_text() for name, path in files.items()}

    gateways, backends = Authority(folder / "gateways"), Authority(folder / "backends")
    names = ("admin-key", "metrics-key", "secret", "backend-token")
    values = {name: secrets.token_urlsafe(24) for name in names} | {
        "cache-url": "redis://redis-cache:6379/0",
        "state-url": "redis://redis-state:6379/0",
        "ledger-url": _DATABASE,
        # Each pod has its own files, so batch jobs do not run here.
        "files-url": "/tmp/files",  # noqa: S108 - in a container
    }
    return {
        "sluicegate": values,
        "backends-tls": pair(backends, "backends", gateways),
        "gateway-tls": pair(gateways, "gateways", backends),
    }


_fault = partial(
    Fault, topology="pods", hold=0.0, load=LoadSpec(rate=40.0, repeated=0.0, hasty=0.0)
)
_FROZEN = ("backend-demo-0", "billing-0", "gateway-0")
_KILLED = ("backend-demo-0", "billing-0", "request-log-0", "batches-0", "gateway-0")
_REPLACED = ("backend-demo-1", "gateway-1", "backend-demo-0", "gateway-0", "billing-0")
FAULTS = (
    # A gateway that dies or stops loses its requests in flight.
    _fault("kill", "kills every process of a pod", "its containers are started again",
           _kill, _KILLED, windows={"gateway": Window(after_begin=3.0)}),
    _fault("replace", "replaces a pod, as an upgrade does", "it is ready",
           _replace, _REPLACED),
    _fault("freeze", "stops a pod until its liveness fails", "its processes go on",
           _freeze, _FROZEN, windows={"gateway": Window(after_begin=5.0)}),
)  # fmt: skip
