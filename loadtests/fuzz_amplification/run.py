"""Sends requests that become large to a whole system, and watches everybody else."""

import contextlib
import http.client
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any  # Any: JSON

import httpx

from backends.model_tools.demo.build import build_demo_models
from loadtests.fuzz_amplification.judging import Observed, late_timers
from loadtests.fuzz_amplification.sending import Target, leave_the_session, send_all
from loadtests.process_resources import resources_of
from testing.ports import free_port
from testing.system import ADMIN_KEY, System

_SENDERS = 2
_PIECE = 500
"""Requests after whose answers a run says how far it is."""
_PATIENCE = 120.0
_BETWEEN_HITS = 0.02
_CALM = 5.0
"""Seconds for which hits are measured before anything else is sent."""
_GIB = 1024**3
_BOUNDS = {"gateway": _GIB, "batches": _GIB, "backend": _GIB}


def fuzz(folder: Path, *, seed: int, numbers: range) -> Observed:
    """Return what was seen of a run of the requests of these numbers."""
    models = folder / "models"
    build_demo_models(models, print)
    grpc_port = free_port()
    environment = {"SLUICEGATE_BATCHES": "true", "SLUICEGATE_GRPC_PORT": str(grpc_port)}
    system = System(folder / "data", models=models, workers=2, environment=environment)
    with system:
        run = _Run(system, seed)
        return run.run(numbers)


class _Run:
    """Has processes send the requests of one customer, and watches."""

    def __init__(self, system: System, seed: int) -> None:
        self._system = system
        self._seed = seed
        self._keys = [_new_key(system, tenant) for tenant in ("amplifier", "bystander")]
        self._observed = Observed(bounds={name: _BOUNDS[role] for name, role, _ in self._watched()})
        self._is_over = threading.Event()

    def run(self, numbers: range) -> Observed:
        """Return what was seen."""
        before, pids = self._metrics(), {name: pid for name, _, pid in self._watched()}
        watching = threading.Thread(target=self._watch, args=(pids,))
        watching.start()
        with _hits(self._system.port, self._keys[1]) as self._observed.calm_hits:
            self._is_over.wait(_CALM)
        calm, before = before, self._metrics()
        self._observed.calm_late_timers = late_timers(calm, before)
        with _hits(self._system.port, self._keys[1]) as hits:
            self._send(numbers)
        self._observed.hits = hits
        self._is_over.set()
        watching.join()
        now = {name: pid for name, _, pid in self._watched()}
        self._observed.replaced = [name for name, pid in pids.items() if now.get(name) != pid]
        self._observed.late_timers = late_timers(before, self._metrics())
        return self._observed

    def _send(self, numbers: range) -> None:
        system = self._system
        target = Target(system.url, system.port, system.grpc_address, self._keys[0])
        spawning = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(_SENDERS, spawning, leave_the_session) as pool:
            starts = range(numbers.start, numbers.stop, _PIECE)
            pieces = [range(start, min(start + _PIECE, numbers.stop)) for start in starts]
            sent = [pool.submit(send_all, target, self._seed, piece) for piece in pieces]
            for piece, answered in zip(pieces, sent, strict=True):
                self._observed.add(answered.result())
                print(f"sent all before {piece.stop}", file=sys.stderr)

    def _watched(self) -> Iterator[tuple[str, str, int]]:
        for process in self._system.processes():
            if process.role in _BOUNDS:
                yield f"{process.role} {process.index}", process.role, process.pid

    def _watch(self, pids: dict[str, int]) -> None:
        while not self._is_over.wait(0.25):
            for name, pid in pids.items():
                memory = resources_of(pid).get("memory", 0)
                most = self._observed.memory.get(name, 0)
                self._observed.memory[name] = max(most, memory)

    def _metrics(self) -> str:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.get(f"{self._system.admin_url}/metrics", headers=headers, timeout=60).text


def _new_key(system: System, tenant: str) -> str:
    """Return a key of a tenant with the limits of the document."""
    with system.admin() as admin:
        admin.post("/admin/tenants", json={"id": tenant}).raise_for_status()
        made: Any = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status().json()
        return str(made["key"])


@contextlib.contextmanager
def _hits(port: int, key: str) -> Iterator[list[float]]:
    """Have another process ask for one hit after the other; the list has their times at the end."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    asking = spawning.Process(target=_ask_for_hits, args=(port, key, theirs))
    asking.start()
    ours.recv()  # it has begun
    times: list[float] = []
    try:
        yield times
    finally:
        ours.send(None)
        times += ours.recv()
        asking.join()


def _ask_for_hits(port: int, key: str, ends: Connection) -> None:
    """Ask for a cached answer until told to end; send the times in seconds."""
    os.setsid()  # scheduled as a machine of its own, beside the sessions of the system
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    times: list[float] = []
    while not times or not ends.poll(_BETWEEN_HITS):
        started = time.perf_counter()
        try:
            connection.request(
                "POST", "/v1/classify", b'{"model":"sentiment","input":"a film"}', headers
            )
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
        times.append(time.perf_counter() - started)
        if len(times) == 1:
            ends.send(None)
    ends.send(times[1:])  # the first one computes the answer
