"""Runs the pods of `overlays/minimal` under load, and kills, replaces and stops some of them."""

import asyncio
import os
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import httpx
import msgspec

from loadtests.arena import images, podman
from loadtests.arena.judging import Window, judge
from loadtests.arena.load import LoadGenerator
from loadtests.arena.podman import run
from loadtests.arena.questions import ExpectedAnswers, every_text
from loadtests.arena.run import compare_with_ledger
from loadtests.kubernetes.pods import (
    PlayedPod,
    dependencies,
    pids,
    play,
    pods,
    prepare,
    remove_everything,
    take_away,
)
from testing.certificates import Authority
from testing.manifests import has_kubectl, render
from testing.waiting import wait_until

_PORT = 18090
_DATABASE = "postgresql+psycopg://sluicegate:for-the-check-alone@database/sluicegate"
_LIMITS = [{"name": "wide", "unit": "requests", "capacity": 100_000_000, "window": 60.0}]
_START = 90.0
_PAUSE = 4.0
"""Seconds of load before the first loss, and between two."""
_IN_FLIGHT = Window(after_begin=3.0)
"""When a gateway is killed, what it had is lost."""
_NEVER = Window()
_ITEMS_AT_ONCE = 60


class PodLoss(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a pod, and when callers may notice."""

    name: str
    window: Window
    act: Callable[[], None]


class Cluster:
    """Holds the pods of an overlay and what they depend on."""

    def __init__(self, overlay: str, folder: Path) -> None:
        self._folder = folder
        self._secrets = _contents_of_secrets(folder)
        base = list(dependencies(Path(__file__).with_name("dependencies.yaml")))
        own = list(pods(render(overlay), self._secrets))
        self.pods = {pod.name: pod for pod in [*base, *own]}
        self.own = {pod.name: pod for pod in own}

    def start(self) -> float:
        """Play every pod at once, as a cluster does; return the seconds until all are ready."""
        prepare({"sluicegate": self._secrets["sluicegate"]}, self._folder)
        begun = time.monotonic()
        for pod in self.pods.values():
            print(f"playing {pod.name}")
            play(pod, self._folder)
        # In place of the Job, whose command waits for database and Redis.
        run("exec", self.own["gateway-0"].container("gateway"), "sluicegate", "ledger", "init")
        for pod in self.own.values():
            self.until_ready(pod)
        return time.monotonic() - begun

    def until_ready(self, pod: PlayedPod) -> None:
        """Wait until a pod passes its probes."""
        wait_until(lambda: pod.passes("readinessProbe"), within=_START, what=f"{pod.name} is ready")

    def replace(self, name: str) -> None:
        """Have a pod replaced, as an upgrade does."""
        pod = self.own[name]
        take_away(pod)
        play(pod, self._folder)
        self.until_ready(pod)

    def kill(self, name: str) -> None:
        """Kill every process of a pod at once; its containers are restarted."""
        pod = self.pods[name]
        for pid in pids(pod):
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.0)
        self.until_ready(pod)

    def keys(self) -> list[str]:
        """Create two tenants, and return a key of each."""
        address = self.own["gateway-0"].address()
        headers = {"authorization": f"Bearer {self._secrets['sluicegate']['admin-key']}"}
        found = []
        with httpx.Client(
            base_url=f"http://{address}:8081", headers=headers, timeout=30.0
        ) as admin:
            for tenant in ("north", "south"):
                body = {"id": tenant, "limits": _LIMITS}
                admin.post("/admin/tenants", json=body).raise_for_status()
                made = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status()
                found.append(made.json()["key"])
        return found

    def ask_ledger(self, query: str) -> list[list[str]]:
        """Return the rows of a query, as text.

        Raises:
            PodmanError: the database cannot be asked.
        """
        words = ("psql", "--host=/tmp", "--username=sluicegate", "--no-align", "--tuples-only")
        database = self.pods["database"].container("database")
        rows = run("exec", database, *words, "--field-separator=\t", "--command", query)
        return [line.split("\t") for line in rows.splitlines()]

    def not_live(self) -> list[str]:
        """Return the pods whose liveness fails."""
        return [name for name, pod in self.own.items() if not pod.passes("livenessProbe")]


@click.command("kubernetes")
@click.option("--rate", default=40.0, show_default=True, help="Requests a second.")
@click.option("--build/--no-build", default=True, help="Build the images first.")
@click.option("--keep", is_flag=True, help="Leave the pods running.")
def kubernetes_command(*, rate: float, build: bool, keep: bool) -> None:
    """Play the pods of `overlays/minimal` under podman: load, pods killed, replaced, stuck.

    Needs root, podman and kubectl.
    """
    if lack := podman.missing() or ("" if has_kubectl() else "`kubectl` is missing"):
        sys.exit(lack)
    podman.prepare()
    if build:
        images.build(anew=False)
    with tempfile.TemporaryDirectory(dir=podman.HOME) as folder:
        cluster = Cluster("minimal", Path(folder))
        try:
            print(f"all pods are ready after {cluster.start():.0f} s")
            problems = [*asyncio.run(_under_load(cluster, rate)), *_stuck(cluster)]
        finally:
            if not keep:
                remove_everything()
    if problems:
        sys.exit("\n".join(problems))
    print("everything went as it must")


async def _under_load(cluster: Cluster, rate: float) -> list[str]:
    keys = cluster.keys()
    expected = await _expected(keys[0])
    started = time.time()
    load = LoadGenerator(_PORT, keys=keys, expected=expected, rate=rate, count=0, seed=1)
    loop = asyncio.get_running_loop()
    spans, dead = [], set()
    async with load:
        await asyncio.sleep(_PAUSE)
        for loss in _losses(cluster):
            begun = loop.time() - load.started
            await asyncio.to_thread(loss.act)
            spans.append((loss, begun, loop.time() - load.started))
            dead |= set(await asyncio.to_thread(cluster.not_live))
            await asyncio.sleep(_PAUSE)
        await load.finish()
    books, _ = await asyncio.to_thread(compare_with_ledger, cluster, load.sent, started)
    problems = [f"{name} was not live under load" for name in dead]
    for number, (loss, begun, ended) in enumerate(spans):
        until = spans[number + 1][1] if number + 1 < len(spans) else float("inf")
        sent = [each for each in load.sent if begun - 0.5 <= each.due < until - 0.5]
        verdict = judge(sent, loss.window, begun=begun, ended=ended)
        print(
            f"{loss.name:24} {verdict.requests:6} requests, {verdict.wrong} wrong,"
            f" {verdict.errors} errors, {verdict.outside} of them outside"
            f" ({loss.window}); ready after {ended - begun:.1f} s {verdict.codes or ''}"
        )
        if verdict.wrong or verdict.outside:
            problems.append(f"{loss.name}: {verdict.wrong} wrong, {verdict.outside} errors outside")
    print(f"ledger: {books.billed} of {books.answered} answers, {books.twice} twice")
    if books.missing or books.twice or books.refused_and_billed:
        problems.append(f"the ledger differs: {books}")
    return problems


def _losses(cluster: Cluster) -> Iterator[PodLoss]:
    for name in ("backend-demo-0", "billing-0", "request-log-0", "batches-0", "gateway-0"):
        window = _IN_FLIGHT if name.startswith("gateway") else _NEVER
        yield PodLoss(name=f"kill {name}", window=window, act=lambda n=name: cluster.kill(n))  # type: ignore[misc]
    for name in ("backend-demo-1", "gateway-1", "backend-demo-0", "gateway-0", "billing-0"):
        yield PodLoss(name=f"replace {name}", window=_NEVER, act=lambda n=name: cluster.replace(n))  # type: ignore[misc]


def _stuck(cluster: Cluster) -> Iterator[str]:
    """Yield what is live although its processes are stopped, and what is not after them."""
    for name in ("backend-demo-0", "billing-0", "gateway-0"):
        pod = cluster.own[name]
        stopped = _all_processes(pod) if name.startswith("gateway") else pids(pod)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        try:
            wait_until(lambda p=pod: not p.passes("livenessProbe"), within=60.0)  # type: ignore[misc]
            print(f"stuck {name}: liveness fails after {time.monotonic() - begun:.0f} s")
        except AssertionError:
            yield f"{name} is live although it stands still"
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda p=pod: p.passes("livenessProbe"), within=30.0)  # type: ignore[misc]


def _all_processes(pod: PlayedPod) -> list[int]:
    """Return every process of a pod, the first ones before those that they started."""
    found = pids(pod)
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found += map(int, children)
    return found


async def _expected(key: str) -> ExpectedAnswers:
    """Return the answer to every question, asked once without a fault."""
    expected = ExpectedAnswers({})
    headers = {"authorization": f"Bearer {key}", "cache-control": "no-cache"}
    url = f"http://127.0.0.1:{_PORT}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60.0) as client:
        for (route, model), texts in every_text().items():
            for start in range(0, len(texts), _ITEMS_AT_ONCE):
                part = texts[start : start + _ITEMS_AT_ONCE]
                answer = await client.post(route, json={"model": model, "input": part})
                expected.add(route, model, part, answer.raise_for_status().content)
    return expected


def _contents_of_secrets(folder: Path) -> dict[str, dict[str, str]]:
    """Return what docs/kubernetes.md tells operators to make."""
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
