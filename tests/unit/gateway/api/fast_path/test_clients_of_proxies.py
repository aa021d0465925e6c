"""Requests of a proxy's clients on the fast path: those count that are under way, and no others."""

import re

import msgspec
import pytest

from sluicegate.gateway.http.peers import AddressCounts, ProxyPeer
from sluicegate.gateway.sockets.networks import Networks
from tests.support.api import KEY
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio
PROXY = "10.0.0.1"


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    return EntryPoint(fast=True)


def ask(text: str, *, of: str) -> bytes:
    body = msgspec.json.encode({"model": "sentiment", "input": text})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n"
    named = f"X-Forwarded-For:  6.6.6.6, {of}\r\n"
    return f"{head}{named}content-length: {len(body)}\r\n\r\n".encode() + body


def connect(entry_point: EntryPoint, counts: AddressCounts) -> None:
    entry_point.connect()
    entry_point.protocol.peer = ProxyPeer(
        PROXY, trusted=Networks(PROXY), field=b"x-forwarded-for", requests=counts
    )


def remaining(answer: bytes) -> int:
    found = re.search(rb"x-ratelimit-remaining-requests: ([0-9]+)", answer)
    assert found is not None
    return int(found[1])


async def test_what_is_waited_for_counts_and_memory_hits_do_not(entry_point: EntryPoint) -> None:
    counts = AddressCounts(1)
    connect(entry_point, counts)
    await entry_point.send(ask("known", of="203.0.113.8"))
    hit = await entry_point.send(ask("known", of="203.0.113.9"))
    counted = len(counts)
    entry_point.api.scene.runner.gate.clear()
    first, transport = entry_point.protocol, entry_point.transport
    first.data_received(ask("new", of="203.0.113.9"))
    under_way = len(counts)

    connect(entry_point, counts)
    second = entry_point.protocol
    repeated = await entry_point.send(ask("known", of="203.0.113.9"))
    other = await entry_point.send(ask("known", of="203.0.113.7"))
    refused = await entry_point.send(ask("newer", of="203.0.113.9"))
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()
    answered = await entry_point.send(ask("newer", of="203.0.113.9"))

    assert (counted, under_way, len(counts)) == (0, 1, 0)
    assert all(b"; hit; detail=memory\r\n" in one for one in (hit, repeated, other))
    assert refused.startswith(b"HTTP/1.1 429 ")
    assert b"keep connections open" in refused
    assert [bytes(transport.written)[:12], answered[:12]] == [b"HTTP/1.1 200"] * 2
    assert not first.answering
    assert not second.answering
    assert [event[4] for event in entry_point.events()].count(429) == 1


async def test_a_client_at_its_bound_spends_nothing_of_its_key(entry_point: EntryPoint) -> None:
    counts = AddressCounts(1)
    connect(entry_point, counts)
    await entry_point.send(ask("known", of="203.0.113.8"))
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new", of="203.0.113.9"))

    connect(entry_point, counts)
    before = await entry_point.send(ask("known", of="203.0.113.8"))
    again = [ask(text, of="203.0.113.9") for text in ("newer", "newer", "newest", "known")]
    refused = await entry_point.send(b"".join(again))
    after = await entry_point.send(ask("known", of="203.0.113.8"))
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert remaining(before) - remaining(after) == 1
    assert refused.count(b"HTTP/1.1 429 ") == len(again)


async def test_a_caller_that_left_counts_no_more(entry_point: EntryPoint) -> None:
    counts = AddressCounts(1)
    connect(entry_point, counts)
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new", of="203.0.113.9"))
    entry_point.transport.close()
    entry_point.leave()

    assert len(counts) == 0
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()
