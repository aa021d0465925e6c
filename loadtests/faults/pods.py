"""Plays the pods of `overlays/minimal` under podman, and kills, replaces and stops some of them."""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Self

import httpx

from loadtests.containers import images, podman
from loadtests.containers.layout import create_keys
from loadtests.containers.podman import run
from loadtests.containers.pods import (
    PlayedPod,
    dependencies,
    pids,
    play,
    pods,
    prepare,
    remove_everything,
    take_away,
)
from loadtests.faults.catalogue import Fault, LoadSpec
from loadtests.faults.containers import PRESENT, failures
from loadtests.faults.judge import LedgerRow, Window
from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import LEDGER_QUERY, TopologyError, ledger_rows
from testing.certificates import Authority
from testing.manifests import has_kubectl, render
from testing.waiting import wait_until

_PORT = 18090
_DATABASE = "postgresql+psycopg://sluicegate:for-the-check-alone@database/sluicegate"
_DEPENDENCIES = Path(podman.__file__).with_name("dependencies.yaml")
_START, _STUCK, _LOOK = 90.0, 60.0, 0.25
_PARTS = {
    "kill": ("backend-demo-0", "billing-0", "request-log-0", "batches-0", "gateway-0"),
    "replace": ("backend-demo-1", "gateway-1", "backend-demo-0", "gateway-0", "billing-0"),
    "freeze": ("backend-demo-0", "billing-0", "gateway-0"),
}


class Pods:
    """The pods of an overlay, and the services that they depend on."""

    name = "pods"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.oracle = RecordedAnswers()
        self.keys: Mapping[str, str] = {}
        self._own: dict[str, PlayedPod] = {}

    def __enter__(self) -> Self:
        if lack := podman.missing() or ("" if has_kubectl() else "`kubectl` is missing"):
            raise TopologyError(lack)
        podman.prepare()
        with failures(), ExitStack() as stack:
            images.build(PRESENT)
            contents = _contents_of_secrets(self._folder)
            self._own = {each.name: each for each in pods(render("minimal"), contents, tag=PRESENT)}
            prepare({"sluicegate": contents["sluicegate"]}, self._folder)
            stack.callback(remove_everything)
            for pod in [*dependencies(_DEPENDENCIES), *self._own.values()]:
                play(pod, self._folder)
            # In place of the Job, whose command waits for database and Redis.
            gateway = self._own["gateway-0"]
            run("exec", gateway.container("gateway"), "sluicegate", "ledger", "init")
            for pod in self._own.values():
                self._until(pod, "readinessProbe")
            headers = {"authorization": f"Bearer {contents['sluicegate']['admin-key']}"}
            url = f"http://{gateway.address()}:8081"
            with httpx.Client(base_url=url, headers=headers, timeout=30.0) as admin:
                self.keys = create_keys(admin, ("north", "south"))
            self.oracle.record(f"http://127.0.0.1:{_PORT}", self.keys["north"])
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def parts(self, fault: str) -> Sequence[str]:
        """Return the pods into which a fault is injected."""
        return _PARTS.get(fault, ())

    @contextmanager
    def inject(self, fault: str, part: str) -> Iterator[None]:
        """Kill, replace or stop a pod."""
        pod = self._own[part]
        with failures():
            if fault == "kill":
                _signal(pids(pod), signal.SIGKILL)
                time.sleep(1.0)
            elif fault == "replace":
                take_away(pod)
                play(pod, self._folder)
            if fault != "freeze":
                yield
                self._until(pod, "readinessProbe")
                return
            stopped = _all_processes(pod) if part.startswith("gateway") else pids(pod)
            _signal(stopped, signal.SIGSTOP)
            try:
                what = f"liveness of {part} fails while it is stopped"
                wait_until(
                    lambda: not pod.passes("livenessProbe"), within=_STUCK, what=what, every=_LOOK
                )
                yield
            finally:
                _signal(stopped, signal.SIGCONT)
            self._until(pod, "livenessProbe")

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """The address of the balancer."""
        return [("127.0.0.1", _PORT)]

    def inside(self) -> AbstractContextManager[None]:
        """Do nothing: this machine reaches the balancer."""
        return nullcontext()

    def unwell(self) -> Sequence[str]:
        """Return the pods that are not live or not ready."""
        probes = ("livenessProbe", "readinessProbe")
        return [name for name, pod in self._own.items() if not all(map(pod.passes, probes))]

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a time."""
        words = ("psql", "--host=/tmp", "--username=sluicegate", "--no-align", "--tuples-only")
        query = LEDGER_QUERY.format(since=int(since * 1e9))
        rows = run("exec", "kube-database-database", *words, "--field-separator=\t", "--command",
                   query)  # fmt: skip
        return ledger_rows(line.split("\t") for line in rows.splitlines())

    def counters(self) -> Mapping[str, float]:
        """Return nothing: no check counts."""
        return {}

    def restore(self) -> None:
        """Replace the pods that a fault left broken."""
        for pod in self._own.values():
            if not pod.passes("readinessProbe"):
                with contextlib.suppress(OSError):
                    take_away(pod)
                play(pod, self._folder)
                self._until(pod, "readinessProbe")

    @staticmethod
    def _until(pod: PlayedPod, probe: str) -> None:
        passes = partial(pod.passes, probe)
        wait_until(passes, within=_START, what=f"{probe} of {pod.name} passes", every=_LOOK)


def _signal(processes: Sequence[int], number: signal.Signals) -> None:
    for pid in processes:
        os.kill(pid, number)


def _all_processes(pod: PlayedPod) -> list[int]:
    """Return every process of a pod, parents before their children."""
    found = pids(pod)
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += map(int, children)
    return found


def _contents_of_secrets(folder: Path) -> dict[str, dict[str, str]]:
    """Return the secrets that docs/kubernetes.md tells operators to create."""
    gateways, backends = Authority(folder / "gateways"), Authority(folder / "backends")
    chain, key = backends.pair("tls", "backends")
    client_chain, client_key = gateways.pair("tls", "gateways")
    names = ("admin-key", "metrics-key", "secret", "backend-token")
    random = {name: secrets.token_urlsafe(24) for name in names}
    return {
        "sluicegate": random
        | {
            "cache-url": "redis://redis-cache:6379/0",
            "state-url": "redis://redis-state:6379/0",
            "ledger-url": _DATABASE,
            # Each pod has files of its own: batches are not run here.
            "files-url": "/tmp/files",  # noqa: S108 - in a container
        },
        "backends-tls": {
            "tls.crt": chain.read_text(),
            "tls.key": key.read_text(),
            "ca.crt": gateways.ca.read_text(),
        },
        "gateway-tls": {
            "tls.crt": client_chain.read_text(),
            "tls.key": client_key.read_text(),
            "ca.crt": backends.ca.read_text(),
        },
    }


_FAULTS = {
    "kill": ("kills every process of a pod", "its containers are started again", 3.0),
    "replace": ("replaces a pod, as an upgrade does", "it is ready", 0.0),
    "freeze": ("stops a pod until its liveness fails", "its processes go on", 5.0),
}
FAULTS = tuple(
    Fault(
        name=name,
        what=what,
        undo=undo,
        topologies=("pods",),
        hold=0.0,
        # A gateway that dies or stands still loses the requests that it has.
        windows={"gateway": Window(after_begin=allowed)},
        load=LoadSpec(rate=40.0, repeated=0.0, hasty=0.0),
    )
    for name, (what, undo, allowed) in _FAULTS.items()
)
