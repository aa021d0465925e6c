"""Sends the requests of one customer to the system under test.

The sending processes have a low scheduling priority, so that they do not slow the system.
"""

import contextlib
import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

import grpc
import httpx

from gateway.supervisor.priority import give_way
from loadtests.fuzz_amplification.judging import Observed
from loadtests.fuzz_amplification.requests import AmplifiedRequest, amplified, lines
from loadtests.fuzz_dialects.routes import Asked, DialectRoute
from loadtests.fuzz_dialects.rpc import METHOD, tensor_message
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
_AT_ONCE = 4
_BATCH_ENDS = ("completed", "failed", "expired", "cancelled")


class Target(NamedTuple):
    """Where one customer sends requests."""

    url: str
    grpc_address: str
    key: str


def leave_the_session() -> None:
    """Start a new session with a low priority for this process.

    Linux divides the processor among sessions first. In the session of the test, the sender's low
    priority would have no effect on the gateway's processes, which have sessions of their own.
    """
    os.setsid()
    give_way()


def send_all(target: Target, seed: int, numbers: range) -> Observed:
    """Send the requests with these numbers, four at a time; return the answers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        parts = [numbers[each::_AT_ONCE] for each in range(_AT_ONCE)]
        senders = [pool.submit(_Sender(target, seed).send, part) for part in parts]
        observed = Observed()
        for sender in senders:
            observed.add(sender.result())
    return observed


class _Sender:
    """Sends one request after another."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._seed = seed
        self._observed = Observed()
        self._batches: list[str] = []

    def send(self, numbers: range) -> Observed:
        """Send the requests with these numbers, wait for batch jobs, and return all answers."""
        headers = {"authorization": f"Bearer {self._target.key}", "accept-encoding": "identity"}
        with (
            httpx.Client(
                base_url=self._target.url,
                headers=headers,
                verify=no_authorities(),
                timeout=_PATIENCE,
            ) as client,
            grpc.insecure_channel(self._target.grpc_address) as channel,
        ):
            for number in numbers:
                asked = amplified(self._seed, number)
                if number % _REQUESTS_A_BATCH == _REQUESTS_A_BATCH // 2:
                    self._send_batch(client, number)
                elif asked.tensors is not None and number % _CALL_SHARE == 0:
                    self._call(channel, asked, *asked.tensors)
                else:
                    self._ask(client, asked)
            self._read_batches(client)
        return self._observed

    def _ask(self, client: httpx.Client, asked: AmplifiedRequest) -> None:
        headers = {"content-type": "application/json", "x-request-timeout": f"{_ALLOWED:g}"}
        status, received = 0 if len(asked.body) <= _MOST_DISCARDED else _REFUSED, 0
        with contextlib.suppress(httpx.TransportError):
            answer = client.post(asked.path, content=asked.body, headers=headers)
            status, received = answer.status_code, len(answer.content)
        self._add(asked.kind, status, len(asked.body), received)

    def _call(
        self, channel: grpc.Channel, asked: AmplifiedRequest, route: DialectRoute, what: Asked
    ) -> None:
        message = tensor_message(route, what, "a").SerializeToString()
        metadata = (("authorization", f"Bearer {self._target.key}"),)
        status, received = 200, 0
        try:
            ask = channel.unary_unary(METHOD)
            received = len(ask(message, metadata=metadata, timeout=_ALLOWED))
        except grpc.RpcError as error:
            status = 500 if error.code() is grpc.StatusCode.INTERNAL else 503
        self._add(f"{asked.kind} over gRPC", status, len(message), received)

    def _send_batch(self, client: httpx.Client, number: int) -> None:
        content = lines(self._seed, count(number), _LINES)
        files = {"file": ("lines.jsonl", io.BytesIO(content))}
        sent = client.post("/v1/files", data={"purpose": "batch"}, files=files)
        body = {
            "input_file_id": sent.json().get("id", ""),
            "endpoint": "/v1/embed",
            "completion_window": "24h",
        }
        made = client.post("/v1/batches", json=body)
        if made.is_success:
            self._batches.append(made.json()["id"])
        self._add("a batch", made.status_code, len(content), len(made.content))

    def _read_batches(self, client: httpx.Client) -> None:
        """Wait for every batch job, and count the bytes of its file of answers."""
        ends_at = time.monotonic() + _PATIENCE
        for batch in self._batches:
            for output in self._outputs(client, batch, ends_at):
                answer = client.get(f"/v1/files/{output}/content")
                kind = "a batch's answers"
                self._add(kind, answer.status_code, 200_000 * _LINES, len(answer.content))

    def _outputs(self, client: httpx.Client, batch: str, ends_at: float) -> Iterator[str]:
        while time.monotonic() < ends_at:
            now = client.get(f"/v1/batches/{batch}").raise_for_status().json()
            if now["status"] in _BATCH_ENDS:
                yield from [now[name] for name in ("output_file_id", "error_file_id") if now[name]]
                return
            time.sleep(1.0)

    def _add(self, kind: str, status: int, sent: int, received: int) -> None:
        self._observed.add_answer(kind, status, sent=sent, received=received)
