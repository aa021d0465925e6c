"""Sends the same requests to two versions of Sluicegate, and compares every byte of the answers."""

import contextlib
import gzip
import io
import itertools
import random
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
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
from loadtests.report import print_table
from testing.ports import free_port
from testing.stub_process import stub_process

_PATIENCE = 30.0
_CALL_EVERY = 10
"""Every tenth connection is a gRPC call."""
_MOST_SHOWN = 20
_CONTEXT = 120
"""Bytes that are shown before and after a difference."""
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
    """Send the same requests to two versions, and compare every byte of the answers.

    Some connections wait for each answer before the next request. Other connections send all
    requests without waiting. If there is any difference, the command fails.
    """
    statuses: Counter[str] = Counter()
    sent, differences = 0, 0
    with seeded_run(seed) as (folder, chosen):
        people = callers(chosen)
        traffic = DialectTraffic(alternates=True)
        with _versions(folder, against.resolve(), people) as gateways:
            for number in itertools.count() if only is None else [only]:
                if sent >= requests:
                    break
                asked, ours, theirs, size = _played(traffic, chosen, number, people, gateways)
                sent += size
                statuses["gRPC" if number % _CALL_EVERY == 0 else ours[:12].decode("latin-1")] += 1
                differences += ours != theirs
                if ours != theirs and differences <= _MOST_SHOWN:
                    _print_difference(number, asked, ours, theirs)
    print_table(("first answer", "connections"), statuses.most_common())
    click.echo(f"{sent} requests; {differences} connections differ")
    sys.exit(1 if differences else 0)


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


def _played(
    traffic: DialectTraffic, seed: int, number: int, people: list[Caller], gateways: list[Gateway]
) -> tuple[bytes, bytes, bytes, int]:
    """Return what one connection sent, both answers, and the number of requests."""
    if number % _CALL_EVERY == 0:
        chance = random.Random(f"{seed}/compare/{number}")
        caller = chance.choice(people)
        route, asked = question(chance, caller, f"rpc-{number}", TENSOR_ROUTES)
        message = tensor_message(route, asked, f"rpc-{number}").SerializeToString()
        ours, theirs = (_call(gateway, message, caller) for gateway in gateways)
        return message, ours, theirs, 1
    script = traffic.script(seed, number, people)
    requests = [request.content for request in script.requests]
    # A reset may end a request at any moment.
    last = script.last.content if script.last is not None and not script.last.resets else b""
    is_at_once = number % 4 == 1
    varying = (*_VARYING, *(_SOURCES if is_at_once else ()), *(_CLOSES if last else ()))
    ours, theirs = (
        _masked(_answers(gateway.port, requests, last, is_at_once=is_at_once), varying)
        for gateway in gateways
    )
    return b"".join(requests) + last, ours, theirs, script.size


def _print_difference(number: int, sent: bytes, ours: bytes, theirs: bytes) -> None:
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((n for n, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    shown = slice(max(0, at - _CONTEXT), at + _CONTEXT)
    click.echo(f"connection {number} differs at byte {at}\n  sent {sent[:1500]!r}")
    click.echo(f"  this version: {ours[shown]!r}\n  the other: {theirs[shown]!r}")


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
    received: list[bytes] = []
    with (
        socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE) as connection,
        connection.makefile("rb") as stream,
    ):
        try:
            if is_at_once:
                connection.sendall(b"".join(requests))
            for request in requests:
                if not is_at_once:
                    connection.sendall(request)
                received.extend(_answer(stream, is_head=request.startswith(b"HEAD")))
            if last:
                connection.sendall(last)
                connection.shutdown(socket.SHUT_WR)
                received.extend(iter(partial(stream.read1, 65_536), b""))
        except TimeoutError:
            received.append(b"<no end>")
        except ConnectionError:
            received.append(b"<ended>")
    return b"".join(received)


def _answer(stream: io.BufferedReader, *, is_head: bool) -> Iterator[bytes]:
    """Yield the parts of one answer; informational answers may come before it."""
    head = b"HTTP/1.1 1"
    while head.startswith(b"HTTP/1.1 1"):
        head = b""
        while not head.endswith(_HEAD_END):
            if not (line := stream.readline()):
                raise ConnectionError
            head += line
            yield line
    length = _LENGTH.search(head)
    if length and not is_head:
        yield stream.read(int(length[1]))


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
