"""Sends requests that cost much to a whole system, and watches the latency of other callers."""

import contextlib
import http.client
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any  # Any: JSON

from backends.model_tools.demo.build import build_demo_models
from loadtests.fuzz_amplification.judging import Observed, late_timers
from loadtests.fuzz_amplification.sending import Target, leave_the_session, send_all
from loadtests.fuzzing import MemoryWatch
from testing.ports import free_port
from testing.system import System

_SENDERS = 2
_PIECE = 500
"""A run prints its progress after each piece of this many requests."""
_PATIENCE = 120.0
_BETWEEN_HITS = 0.02
_CALM = 5.0
"""Seconds for which hits are measured before any large request is sent."""
_GIB = 1024**3
_BOUNDS = {"gateway": _GIB, "batches": _GIB, "backend": _GIB}


def fuzz(folder: Path, *, seed: int, numbers: range) -> Observed:
    """Send the requests with these numbers, and return the result."""
    models = folder / "models"
    build_demo_models(models, print)
    grpc_port = free_port()
    environment = {"SLUICEGATE_BATCHES": "true", "SLUICEGATE_GRPC_PORT": str(grpc_port)}
    system = System(folder / "data", models=models, workers=2, environment=environment)
    with system:
        run = _Run(system, seed)
        return run.run(numbers)


class _Run:
    """Starts processes that send one customer's requests, and watches the system."""

    def __init__(self, system: System, seed: int) -> None:
        self._system = system
        self._seed = seed
        self._keys = [_new_key(system, tenant) for tenant in ("amplifier", "bystander")]
        self._observed = Observed(bounds={name: _BOUNDS[role] for name, role, _ in self._watched()})

    def run(self, numbers: range) -> Observed:
        """Send the requests with these numbers, and return the result."""
        before, pids = self._metrics(), {name: pid for name, _, pid in self._watched()}
        with MemoryWatch(pids) as watch:
            with _hits(self._system.port, self._keys[1]) as self._observed.calm_hits:
                time.sleep(_CALM)
            calm, before = before, self._metrics()
            with _hits(self._system.port, self._keys[1]) as self._observed.hits:
                self._send(numbers)
        now = {name: pid for name, _, pid in self._watched()}
        self._observed.memory = watch.most
        self._observed.replaced = [name for name, pid in pids.items() if now.get(name) != pid]
        after = self._metrics()
        self._observed.calm_late_timers = late_timers(calm, before, "lag")
        self._observed.late_timers = late_timers(before, after, "lag")
        self._observed.held_timers = late_timers(before, after, "held")
        return self._observed

    def _send(self, numbers: range) -> None:
        system = self._system
        target = Target(system.url, system.grpc_address, self._keys[0])
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

    def _metrics(self) -> str:
        """Return the metrics of the gateway and of every backend."""
        backends = self._system.processes("backend")
        with self._system.admin() as admin:
            urls = ["/metrics", *(f"{backend.address}/metrics" for backend in backends)]
            return "".join(admin.get(url).raise_for_status().text for url in urls)


def _new_key(system: System, tenant: str) -> str:
    """Return a new key of a tenant that has the limits of the configuration document."""
    with system.admin() as admin:
        admin.post("/admin/tenants", json={"id": tenant}).raise_for_status()
        made: Any = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status().json()
        return str(made["key"])


@contextlib.contextmanager
def _hits(port: int, key: str) -> Iterator[list[float]]:
    """Let another process send one hit after another.

    Yield a list that gets the latencies at the exit.
    """
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    asking = spawning.Process(target=_ask_for_hits, args=(port, key, theirs))
    asking.start()
    ours.recv()  # the process has sent its first request
    times: list[float] = []
    try:
        yield times
    finally:
        ours.send(None)
        times += ours.recv()
        asking.join()


def _ask_for_hits(port: int, key: str, ends: Connection) -> None:
    """Send requests for a cached answer until `ends` says to stop.

    Then send back their latencies in s.
    """
    os.setsid()  # scheduled like a separate machine, beside the sessions of the system
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
    ends.send(times[1:])  # the first request computes the answer
