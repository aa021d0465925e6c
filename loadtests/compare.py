"""Sends the same requests to two versions of Sluicegate, and compares every byte of the answers."""

import contextlib
import gzip
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import grpc

from loadtests.fuzz_dialects import backend
from loadtests.fuzz_dialects.command import DialectTraffic, question
from loadtests.fuzz_dialects.routes import METHOD, TENSOR_ROUTES, tensor_message
from loadtests.fuzz_http.bodies import Caller, callers
from loadtests.fuzz_http.command import document_of
from loadtests.fuzzing import seeded_run
from loadtests.gateway import Gateway, running_gateway
from loadtests.options import only, seed
from testing.ports import free_port
from testing.stub_process import stub_process

_PATIENCE = 30.0
_CALL_EVERY = 10
"""Every tenth connection is a gRPC call."""
_MOST_SHOWN, _CONTEXT = 20, 120
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
# These parts differ between two runs of one version: times, ids, and values made from them.
_VARYING = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), replacement)
    for pattern, replacement in (
        (
            rb"^(date|server-timing|age|retry-after|ratelimit|x-ratelimit-[a-z-]+): [^\r]*",
            rb"\1: *",
        ),
        (rb"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", b"ID"),
        (rb"(request_id|\"id\")(\W{1,3})[\w-]{16,}", rb"\1\2ID"),
        (rb"(x-request-id: )[\w-]{16,}", rb"\1ID"),
        (rb"(\"created\": ?)\d+", rb"\1*"),
        (rb"(traceparent: )[\w-]+", rb"\1*"),
    )
)
# Requests that are in flight together may share a computation, or find each other's results cached.
_SOURCES = (
    (re.compile(rb'"(hit|collapsed|computed)": ?\d+'), rb'"\1":*'),
    (re.compile(rb"(cache-status: )[^\r]*", re.IGNORECASE), rb"\1*"),
    (re.compile(rb'"source": ?"\w+"'), b'"source":*'),
)
# A worker sends `connection: close` if it noticed, before it answered, that the client had closed
# its side of the connection.
_CLOSES = ((re.compile(rb"connection: close\r\n", re.IGNORECASE), b""),)


class Differences:
    """Counts equal and different answers, and prints the first differences."""

    def __init__(self) -> None:
        self.answers: Counter[bytes] = Counter()
        """The number of connections by the status of their first answer."""
        self.found = 0

    def compare(self, what: str, sent: bytes, ours: bytes, theirs: bytes) -> None:
        """Count equal and different answers of one connection."""
        self.answers[ours[:12] if ours.startswith(b"HTTP") else b"gRPC"] += 1
        if ours == theirs:
            return
        self.found += 1
        if self.found <= _MOST_SHOWN:
            at = next(
                (n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
                min(len(ours), len(theirs)),
            )
            first = max(0, at - _CONTEXT)
            click.echo(f"{what} differs at byte {at}\n  sent {sent[:1500]!r}")
            for name, answer in (("this version", ours), ("the other", theirs)):
                click.echo(f"  {name}: {answer[first : at + _CONTEXT]!r}")


@click.command("compare")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="The other version: a checkout whose `gateway` runs in this environment.",
)
@click.option("--requests", default=200_000)
@seed
@only
def compare_command(*, against: Path, requests: int, seed: int | None, only: int | None) -> None:
    """Send the same requests to two versions, one connection after the other.

    Some connections wait for each answer before the next request. Other connections send all
    requests without waiting. If there is any difference, the command fails.
    """
    with seeded_run(seed) as (folder, chosen):
        differences = Differences()
        people = callers(chosen)
        with _versions(folder, against.resolve(), people) as gateways:
            traffic = DialectTraffic(alternates=True)
            sent, number = 0, only or 0
            while sent < requests:
                sent += _play(traffic, chosen, number, people, gateways, differences)
                number += 1
                if only is not None:
                    break
    for first, count in differences.answers.most_common():
        click.echo(f"{count:>8} {first.decode('latin-1')}")
    click.echo(f"{sent} requests on {number} connections; {differences.found} connections differ")
    sys.exit(1 if differences.found else 0)


@contextlib.contextmanager
def _versions(folder: Path, other: Path, people: list[Caller]) -> Iterator[list[Gateway]]:
    """Run a gateway of each version, each with a backend, a Redis and a ledger of its own."""
    with contextlib.ExitStack() as stack:
        gateways = []
        for name, source in (("ours", None), ("theirs", other)):
            stub = stack.enter_context(stub_process(module=backend.__name__))
            gateway = running_gateway(
                folder / name,
                document_of(stub.url),
                keys={caller.tenant: caller.key for caller in people},
                workers=1,
                source=source,
                grpc_port=free_port(),
            )
            gateways.append(stack.enter_context(gateway))
        yield gateways


def _play(
    traffic: DialectTraffic,
    seed: int,
    number: int,
    people: list[Caller],
    gateways: list[Gateway],
    differences: Differences,
) -> int:
    """Compare the answers on one connection; return the number of its requests."""
    if number % _CALL_EVERY == 0:
        chance = random.Random(f"{seed}/compare/{number}")
        caller = chance.choice(people)
        route, asked = question(chance, caller, f"rpc-{number}", TENSOR_ROUTES)
        message = tensor_message(route, asked, f"rpc-{number}").SerializeToString()
        ours, theirs = (_call(gateway, message, caller) for gateway in gateways)
        differences.compare(f"call {number}", message, ours, theirs)
        return 1
    script = traffic.script(seed, number, people)
    requests = [request.content for request in script.requests]
    # A reset may end a request at any moment.
    last = script.last.content if script.last is not None and not script.last.resets else b""
    if not requests and not last:
        return 0
    is_at_once = number % 4 == 1
    varying = (*_VARYING, *(_SOURCES if is_at_once else ()), *(_CLOSES if last else ()))
    ours, theirs = (
        _masked(_answers(gateway.port, requests, last, is_at_once=is_at_once), varying)
        for gateway in gateways
    )
    differences.compare(f"connection {number}", b"".join(requests) + last, ours, theirs)
    return script.size


def _call(gateway: Gateway, message: bytes, caller: Caller) -> bytes:
    """Return the answer of a call, or its status and details."""
    metadata = (("authorization", f"Bearer {caller.key}"), ("x-request-id", "own"))
    with grpc.insecure_channel(f"127.0.0.1:{gateway.settings.grpc_port}") as channel:
        try:
            answer: bytes = channel.unary_unary(METHOD)(
                message, metadata=metadata, timeout=_PATIENCE
            )
        except grpc.RpcError as error:
            return f"{error.code()} {error.details()}".encode()
    return answer


def _answers(port: int, requests: list[bytes], last: bytes, *, is_at_once: bool) -> bytes:
    """Return the answers to valid `requests`, and all bytes that the server sends for `last`.

    `last` may be invalid. If `is_at_once` is true, all requests are sent before the first answer is
    read.

    After `last`, the function ends its side of the connection. A server that waits for the rest of
    `last` then closes the connection.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection:
        answers = _Answers(connection)
        try:
            if is_at_once:
                connection.sendall(b"".join(requests))
            for request in requests:
                if not is_at_once:
                    connection.sendall(request)
                answers.read_one(is_head=request.startswith(b"HEAD"))
            if last:
                connection.sendall(last)
                connection.shutdown(socket.SHUT_WR)
                answers.read_all()
        except TimeoutError:
            answers.received += b"<no end>"
        except ConnectionError:
            answers.received += b"<ended>"
    return bytes(answers.received)


class _Answers:
    """Reads answers from a connection; `received` holds all bytes so far."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._at = 0
        self.received = bytearray()

    def read_one(self, *, is_head: bool) -> None:
        """Read until one more answer is complete; informational answers may come before it."""
        head = b"HTTP/1.1 1"
        while head.startswith(b"HTTP/1.1 1"):
            while (end := self.received.find(_HEAD_END, self._at)) < 0:
                self._read()
            end += len(_HEAD_END)
            head = bytes(self.received[self._at : end])
            self._at = end
        length = _LENGTH.search(head)
        self._at += int(length[1]) if length and not is_head else 0
        while len(self.received) < self._at:
            self._read()

    def read_all(self) -> None:
        """Read until the server closes."""
        while data := self._connection.recv(65_536):
            self.received += data

    def _read(self) -> None:
        data = self._connection.recv(65_536)
        if not data:
            raise ConnectionError
        self.received += data


def _masked(answers: bytes, varying: Sequence[tuple[re.Pattern[bytes], bytes]]) -> bytes:
    """Return the answers without their varying parts, with compressed bodies inflated."""
    parts, at = [], 0
    while (end := answers.find(_HEAD_END, at)) >= 0:
        end += len(_HEAD_END)
        head = answers[at:end]
        length = _LENGTH.search(head)
        at = end + (int(length[1]) if length else 0)
        body = answers[end:at]
        if b"content-encoding: gzip" in head.lower() and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
            head = _LENGTH.sub(b"content-length: *", head)
        parts += [head, body]
    found = b"".join(parts) + answers[at:]
    for pattern, replacement in varying:
        found = pattern.sub(replacement, found)
    return found
