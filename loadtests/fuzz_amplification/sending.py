"""Sends the requests of two customers, from processes of their own: large ones, and hits."""

import contextlib
import http.client
import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

import grpc
import httpx

from loadtests.fuzz_amplification.requests import AmplifiedRequest, amplified, lines
from loadtests.fuzz_dialects.routes import METHOD, tensor_message
from sluicegate.gateway.supervisor.priority import give_way
from testing.loopback import no_authorities

_PATIENCE = 120.0
_ALLOWED = 4.0
"""Seconds that a request may take; a backend refuses items that it cannot finish in time."""
_LINES = 40
_REQUESTS_A_BATCH = 100
_REFUSED = 413
_MOST_DISCARDED = 64 * 1024 * 1024
"""Of a body that is too long, the gateway reads this many bytes and then ends the connection."""
_CALL_SHARE = 4
"""One in this many requests of tensors goes over gRPC."""
_AT_ONCE = 8
_BATCH_ENDS = ("completed", "failed", "expired", "cancelled")
_BATCHES_END_WITHIN = 30.0


_HIT = b'{"model":"sentiment","input":"a film"}'
_BETWEEN_HITS = 0.02


class Answer(NamedTuple):
    """An answer to a kind of request, with the sizes of both in bytes."""

    kind: str
    status: int
    """The status over HTTP; 0 means that the connection ended."""
    sent: int
    received: int


class Target(NamedTuple):
    """Where one customer sends requests."""

    url: str
    grpc_address: str
    key: str


def hits(port: int, key: str, duration: float) -> list[float]:
    """Send one hit after another for `duration` seconds; return their latencies in seconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    ends_at, latencies = time.monotonic() + duration, list[float]()
    while time.monotonic() < ends_at:
        started = time.perf_counter()
        try:
            connection.request("POST", "/v1/classify", _HIT, headers)
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            connection.close()
        latencies.append(time.perf_counter() - started)
        time.sleep(_BETWEEN_HITS)
    return latencies[1:]  # the first request computes the answer


def leave_the_session() -> None:
    """Start a new session with a low priority for this process, so that it slows the system less.

    Linux divides the processor among sessions first. In the session of the test, the sender's low
    priority would have no effect on the gateway's processes, which have sessions of their own.
    """
    os.setsid()
    give_way()


def send_all(target: Target, seed: int, duration: float) -> list[Answer]:
    """Send requests for `duration` seconds, eight at a time; return the answers."""
    ends_at = time.monotonic() + duration
    sender, numbers = _Sender(target, seed), count()

    def send() -> list[Answer]:
        answers = list[Answer]()
        while time.monotonic() < ends_at:
            answers.append(sender.send(next(numbers)))
        return answers

    with sender.client, sender.channel:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            sending = [pool.submit(send) for _ in range(_AT_ONCE)]
        answers = [answer for sent in sending for answer in sent.result()]
        return [*answers, *sender.batch_answers()]


class _Sender:
    """Sends requests, also from several threads at once."""

    def __init__(self, target: Target, seed: int) -> None:
        self._seed = seed
        self._key = target.key
        headers = {"authorization": f"Bearer {target.key}", "accept-encoding": "identity"}
        self.client = httpx.Client(
            base_url=target.url, headers=headers, verify=no_authorities(), timeout=_PATIENCE
        )
        self.channel = grpc.insecure_channel(target.grpc_address)
        self._batches: list[str] = []

    def send(self, number: int) -> Answer:
        """Send the request with this number."""
        if number % _REQUESTS_A_BATCH == _REQUESTS_A_BATCH // 2:
            return self._send_batch(number)
        asked = amplified(self._seed, number)
        if asked.tensors is not None and number % _CALL_SHARE == 0:
            return self._call(asked.kind, tensor_message(*asked.tensors, "a").SerializeToString())
        return self._ask(asked)

    def _ask(self, asked: AmplifiedRequest) -> Answer:
        headers = {"content-type": "application/json", "x-request-timeout": f"{_ALLOWED:g}"}
        status, received = 0 if len(asked.body) <= _MOST_DISCARDED else _REFUSED, 0
        with contextlib.suppress(httpx.TransportError):
            answer = self.client.post(asked.path, content=asked.body, headers=headers)
            status, received = answer.status_code, len(answer.content)
        return Answer(asked.kind, status, len(asked.body), received)

    def _call(self, kind: str, message: bytes) -> Answer:
        status, received = 200, 0
        try:
            ask = self.channel.unary_unary(METHOD)
            metadata = (("authorization", f"Bearer {self._key}"),)
            received = len(ask(message, metadata=metadata, timeout=_ALLOWED))
        except grpc.RpcError as error:
            status = 500 if error.code() is grpc.StatusCode.INTERNAL else 503
        return Answer(f"{kind} over gRPC", status, len(message), received)

    def _send_batch(self, number: int) -> Answer:
        content = lines(self._seed, count(number), _LINES)
        files = {"file": ("lines.jsonl", io.BytesIO(content))}
        sent = self.client.post("/v1/files", data={"purpose": "batch"}, files=files)
        body = {
            "input_file_id": sent.json().get("id", ""),
            "endpoint": "/v1/embed",
            "completion_window": "24h",
        }
        made = self.client.post("/v1/batches", json=body)
        if made.is_success:
            self._batches.append(made.json()["id"])
        return Answer("a batch", made.status_code, len(content), len(made.content))

    def batch_answers(self) -> Iterator[Answer]:
        """Wait for a while for the batch jobs, and read the files of the jobs that have ended."""
        ends_at = time.monotonic() + _BATCHES_END_WITHIN
        for batch in self._batches:
            now = self._ended(batch, ends_at)
            for output in filter(None, (now["output_file_id"], now["error_file_id"])):
                answer = self.client.get(f"/v1/files/{output}/content")
                yield Answer(
                    "a batch's answers", answer.status_code, 200_000 * _LINES, len(answer.content)
                )

    def _ended(self, batch: str, ends_at: float) -> dict[str, str | None]:
        """Return a batch job once it has ended, or as it is at `ends_at`."""
        now: dict[str, str | None]
        while True:
            now = self.client.get(f"/v1/batches/{batch}").raise_for_status().json()
            if now["status"] in _BATCH_ENDS or time.monotonic() > ends_at:
                return now
            time.sleep(0.5)
