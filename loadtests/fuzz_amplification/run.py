"""Sends requests that become large to a whole system, and watches everybody else."""

import contextlib
import http.client
import io
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any  # Any: JSON

import grpc
import httpx

from backends.model_tools.demo.build import build_demo_models
from loadtests.fuzz_amplification.judging import Observed, late_timers
from loadtests.fuzz_amplification.requests import AmplifiedRequest, amplified, lines
from loadtests.fuzz_dialects.rpc import METHOD, tensor_message
from loadtests.harness.ports import free_port
from loadtests.harness.system import ADMIN_KEY, System
from loadtests.soak.sampling import sample

_AT_ONCE = 8
_PATIENCE = 120.0
_ALLOWED = b"4"
"""Seconds that a request may take: what a backend cannot do in time is refused."""
_BETWEEN_HITS = 0.02
_LINES = 40
_REQUESTS_A_BATCH = 100
_REFUSED = 413
_MOST_DISCARDED = 64 * 1024 * 1024
"""The gateway ends a connection whose body is this much longer than what it reads."""
_CALM = 5.0
"""Seconds for which hits are measured before anything else is sent."""
_CALL_SHARE = 4
"""Of so many requests of tensors one is sent over gRPC."""
_GIB = 1024**3
_BOUNDS = {"gateway": _GIB, "batches": _GIB, "backend": _GIB}


def fuzz(folder: Path, *, seed: int, requests: int) -> Observed:
    """Return what was seen of a run of so many requests."""
    models = folder / "models"
    build_demo_models(models, print)
    grpc_port = free_port()
    environment = {"SLUICEGATE_BATCHES": "true", "SLUICEGATE_GRPC_PORT": str(grpc_port)}
    system = System(folder / "data", models=models, workers=2, environment=environment)
    with system:
        run = _Run(system, seed)
        return run.run(requests)


class _Run:
    """Sends the requests of one customer, from several threads."""

    def __init__(self, system: System, seed: int) -> None:
        self._system = system
        self._seed = seed
        self._keys = [_new_key(system, tenant) for tenant in ("amplifier", "bystander")]
        self._observed = Observed(bounds={name: _BOUNDS[role] for name, role, _ in self._watched()})
        self._lock = threading.Lock()
        self._numbers = count()
        self._is_over = threading.Event()

    def run(self, requests: int) -> Observed:
        """Return what was seen."""
        before, pids = self._metrics(), {name: pid for name, _, pid in self._watched()}
        watching = threading.Thread(target=self._watch, args=(pids,))
        watching.start()
        with _hits(self._system.port, self._keys[1]) as self._observed.calm_hits:
            self._is_over.wait(_CALM)
        calm, before = before, self._metrics()
        self._observed.calm_late_timers = late_timers(calm, before)
        with _hits(self._system.port, self._keys[1]) as hits, ThreadPoolExecutor(_AT_ONCE) as pool:
            for sender in [pool.submit(self._send_all, requests) for _ in range(_AT_ONCE)]:
                sender.result()
        self._observed.hits = hits
        self._is_over.set()
        watching.join()
        now = {name: pid for name, _, pid in self._watched()}
        self._observed.replaced = [name for name, pid in pids.items() if now.get(name) != pid]
        self._observed.late_timers = late_timers(before, self._metrics())
        return self._observed

    def _send_all(self, requests: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._system.port, timeout=_PATIENCE)
        with grpc.insecure_channel(self._system.grpc_address) as channel:
            while (number := next(self._numbers)) < requests:
                asked = amplified(self._seed, number)
                if number % _REQUESTS_A_BATCH == _REQUESTS_A_BATCH // 2:
                    self._send_batch(number)
                elif asked.tensors is not None and number % _CALL_SHARE == 0:
                    self._call(channel, asked)
                else:
                    self._ask(connection, asked)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, asked: AmplifiedRequest) -> None:
        headers = {
            "authorization": f"Bearer {self._keys[0]}",
            "content-type": "application/json",
            "x-request-timeout": _ALLOWED.decode(),
        }
        status, received = 0 if len(asked.body) <= _MOST_DISCARDED else _REFUSED, 0
        try:
            connection.request("POST", asked.path, asked.body, headers)
            answer = connection.getresponse()
            status, received = answer.status, len(answer.read())
        except (OSError, http.client.HTTPException):
            connection.close()
        self._add(asked.kind, status, len(asked.body), received)

    def _call(self, channel: grpc.Channel, asked: AmplifiedRequest) -> None:
        if asked.tensors is None:
            return
        message = tensor_message(*asked.tensors, "a").SerializeToString()
        ask = channel.unary_unary(METHOD)
        metadata = (("authorization", f"Bearer {self._keys[0]}"),)
        status, received = 200, 0
        try:
            received = len(ask(message, metadata=metadata, timeout=float(_ALLOWED)))
        except grpc.RpcError as error:
            status = 500 if error.code() is grpc.StatusCode.INTERNAL else 503
        self._add(f"{asked.kind} over gRPC", status, len(message), received)

    def _send_batch(self, number: int) -> None:
        """Have lines answered, and count the file of their answers as one."""
        content = lines(self._seed, count(number), _LINES)
        headers = {"authorization": f"Bearer {self._keys[0]}"}
        with httpx.Client(base_url=self._system.url, headers=headers, timeout=_PATIENCE) as client:
            files = {"file": ("lines.jsonl", io.BytesIO(content))}
            sent = client.post("/v1/files", data={"purpose": "batch"}, files=files)
            body = {
                "input_file_id": sent.json().get("id", ""),
                "endpoint": "/v1/embed",
                "completion_window": "24h",
            }
            made = client.post("/v1/batches", json=body)
        self._add("a batch", made.status_code, len(content), len(made.content))

    def _add(self, kind: str, status: int, sent: int, received: int) -> None:
        with self._lock:
            self._observed.add_answer(kind, status, sent=sent, received=received)

    def _watched(self) -> Iterator[tuple[str, str, int]]:
        for process in self._system.processes():
            if process.role in _BOUNDS:
                yield f"{process.role} {process.index}", process.role, process.pid

    def _watch(self, pids: dict[str, int]) -> None:
        while not self._is_over.wait(0.25):
            for name, pid in pids.items():
                if (taken := sample(pid, 0.0)) is not None:
                    most = self._observed.memory.get(name, 0)
                    self._observed.memory[name] = max(most, taken.memory)

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
