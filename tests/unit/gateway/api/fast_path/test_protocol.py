"""The fast lane on one connection: at once, in order, and no faster than its peer reads."""

import asyncio
import re
from typing import Any

import msgspec
import pytest

from gateway.events.hit_run import ids_of
from gateway.types import Rule
from loadtests.harness.waiting import until
from tests.support.api import KEY
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio


@pytest.fixture
async def door(anyio_backend: str) -> EntryPoint:
    return EntryPoint(fast=True)


def ask(text: str) -> bytes:
    body = msgspec.json.encode({"model": "sentiment", "input": text})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def answers(door: EntryPoint) -> list[bytes]:
    """Return how the cache was used for what was answered so far, in its order."""
    parts = bytes(door.transport.written).split(b"cache-status: sluicegate; ")[1:]
    return [part.split(b"\r\n", 1)[0] for part in parts]


async def test_a_hit_is_answered_without_a_task(door: EntryPoint) -> None:
    await door.send(ask("known"))

    door.protocol.data_received(ask("known"))
    tasks = len(door.state.tasks)
    await door.rest()

    assert tasks == 0
    assert door.transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"cache-status: sluicegate; hit; detail=memory\r\n" in door.transport.written


async def test_what_was_decided_before_a_wait_is_not_decided_again(door: EntryPoint) -> None:
    first = await door.send(ask("new"))

    assert b"x-ratelimit-remaining-requests: 59\r\n" in first
    assert len(door.events()) == 1


async def test_a_hit_does_not_overtake_a_miss_on_its_connection(door: EntryPoint) -> None:
    await door.send(ask("known"))
    door.api.scene.runner.gate.clear()

    door.protocol.data_received(ask("new"))
    door.protocol.data_received(ask("known"))
    await door.rest()
    early = answers(door)
    door.api.scene.runner.gate.set()
    await door.rest()

    assert early == []
    assert answers(door) == [b"fwd=uri-miss; stored", b"hit; detail=memory"]


async def test_a_miss_is_waited_for_without_the_application(door: EntryPoint) -> None:
    await door.send(ask("new"))

    assert door.protocol.cycle is None
    assert door.state.total_requests == 1


async def test_little_is_read_while_an_answer_is_waited_for(door: EntryPoint) -> None:
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new") + ask("newer"))
    held = door.transport.reads
    door.api.scene.runner.gate.set()
    await door.rest()

    assert not held
    assert door.transport.reads
    assert answers(door) == [b"fwd=uri-miss; stored"] * 2


async def test_a_caller_that_left_is_not_answered(door: EntryPoint) -> None:
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new") + ask("newer"))
    door.transport.close()
    door.leave()
    door.api.scene.runner.gate.set()
    await door.rest()

    assert door.transport.written == b""
    assert len(door.events()) == 1


async def test_what_is_waited_for_when_the_server_stops_is_answered_last(door: EntryPoint) -> None:
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new"))
    door.protocol.shutdown()
    closed_early = door.transport.is_closing()
    door.api.scene.runner.gate.set()
    await door.rest()

    assert not closed_early
    assert answers(door) == [b"fwd=uri-miss; stored"]
    assert b"\r\nconnection: close\r\n" in door.transport.written
    assert door.transport.is_closing()


async def test_a_wait_is_no_silence(door: EntryPoint) -> None:
    door.protocol.timeout_keep_alive = 0.01
    await door.send(ask("known"))
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new"))
    door.protocol.timeout_keep_alive_handler()
    door.protocol.close_if_timed_out(door.protocol.loop.time() + 60)

    assert not door.transport.is_closing()
    door.api.scene.runner.gate.set()
    await door.rest()


async def test_a_peer_that_never_reads_what_it_waited_for_is_left(door: EntryPoint) -> None:
    door.protocol.data_received(ask("new"))
    door.protocol.pause_writing()
    await door.rest()
    assert not door.transport.written

    door.protocol.close_if_timed_out(door.protocol.loop.time() + 3600)
    assert door.transport.is_closing()
    door.leave()
    await door.rest()


async def test_a_peer_that_reads_again_gets_what_it_waited_for(door: EntryPoint) -> None:
    await door.send(ask("known"))
    door.api.scene.cache.has_memory = False
    for text in ("known", "new"):
        door.protocol.data_received(ask(text) + ask(text))
        door.protocol.pause_writing()
        await door.rest()
        assert answers(door) == []
        door.protocol.resume_writing()
        await door.rest()
        found = answers(door)
        door.transport.written.clear()

        assert found[1:] == [b"hit; detail=redis"]
        assert found[0] == (b"hit; detail=redis" if text == "known" else b"fwd=uri-miss; stored")


async def test_what_was_read_before_the_server_stops_is_answered(door: EntryPoint) -> None:
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new") + ask("newer") + ask("newest"))
    door.protocol.shutdown()
    door.api.scene.runner.gate.set()
    await door.rest()

    assert answers(door) == [b"fwd=uri-miss; stored"] * 3
    heads = bytes(door.transport.written).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [b"connection: close" in head for head in heads] == [False, False, True]
    assert door.transport.is_closing()


async def test_a_server_that_stops_reads_no_more_from_those_who_keep_asking(
    door: EntryPoint,
) -> None:
    door.api.scene.runner.gate.clear()
    door.protocol.data_received(ask("new"))
    before = door.transport.reads
    door.protocol.shutdown()
    after = door.transport.reads
    door.protocol.data_received(ask("newer"))  # was under way already
    door.api.scene.runner.gate.set()
    await door.rest()

    assert (before, after, door.transport.reads) == (True, False, False)
    assert answers(door) == [b"fwd=uri-miss; stored"] * 2
    assert door.transport.is_closing()


async def test_a_fault_after_the_cache_was_asked_is_an_answer_and_an_event(
    door: EntryPoint,
) -> None:
    await door.send(ask("known"))
    door.events()
    door.api.scene.cache.has_memory = False
    (key,) = door.api.scene.cache.entries
    entry = door.api.scene.cache.entries[key]
    broken: Any = None  # no payload: not what a cache may return
    door.api.scene.cache.entries[key] = msgspec.structs.replace(entry, payload=broken)

    answer = await door.send(ask("known"))

    assert answer.startswith(b"HTTP/1.1 500")
    assert [event[4] for event in door.events()] == [500]
    door.api.scene.cache.entries[key] = entry
    assert (await door.send(ask("known"))).startswith(b"HTTP/1.1 200")


async def test_a_limit_on_trial_counts_a_miss_once(door: EntryPoint) -> None:
    door.api.limit(Rule(name="trial", unit="requests", capacity=1, window=60.0, shadow=True))

    await door.send(ask("new"))
    await door.send(ask("newer"))

    door.api.metrics.flush()
    labels = {"policy": "trial"}
    counted = door.api.registry.get_sample_value("sluicegate_rate_limit_shadowed_total", labels)
    assert counted == 1


async def test_nothing_is_answered_or_read_while_the_peer_does_not_read(door: EntryPoint) -> None:
    await door.send(ask("known"))

    door.protocol.pause_writing()
    door.protocol.data_received(ask("known") * 3)
    held = (bytes(door.transport.written), door.transport.reads)
    door.protocol.resume_writing()
    await door.rest()

    assert held == (b"", False)
    assert len(answers(door)) == 3
    assert door.transport.reads


async def test_a_key_that_is_gone_is_unknown_to_the_lane_at_once(door: EntryPoint) -> None:
    await door.send(ask("known"))
    await door.send(ask("known"))

    door.api.keys.replace({})

    assert (await door.send(ask("known"))).startswith(b"HTTP/1.1 401")


async def test_another_document_holds_for_the_next_hit(door: EntryPoint) -> None:
    await door.send(ask("known"))
    await door.send(ask("known"))

    door.api.limit()

    assert b"x-ratelimit" not in await door.send(ask("known"))


async def test_a_connection_that_fell_silent_is_closed(door: EntryPoint) -> None:
    await door.send(ask("known"))
    door.protocol.timeout_keep_alive = 0.01
    door.protocol.data_received(ask("known"))

    door.protocol.timeout_keep_alive_handler()

    assert not door.transport.is_closing()
    await until(door.transport.is_closing, what="closed")


async def test_no_answer_leaves_before_its_event_is_kept(door: EntryPoint) -> None:
    await door.send(ask("known"))
    await door.send(ask("known"))
    door.events()
    seen: list[tuple[bool, int]] = []

    def look() -> None:
        seen.append((bool(door.transport.written), sum(e.count for e in door.api.events.events)))

    door.protocol.data_received(ask("known"))
    look()
    await door.rest()
    look()

    assert seen == [(False, 0), (True, 1)]


async def test_a_known_request_is_told_when_its_event_cannot_be_kept(door: EntryPoint) -> None:
    await door.send(ask("known"))
    await door.send(ask("known"))
    door.api.events.failing = True

    refused = await door.send(ask("known"))
    door.api.events.failing = False

    assert refused.startswith(b"HTTP/1.1 503")
    assert b'"event_log_unavailable"' in refused
    assert (await door.send(ask("known"))).startswith(b"HTTP/1.1 200")


async def test_hits_on_several_connections_are_one_event(door: EntryPoint) -> None:
    await door.send(ask("known"))
    await door.send(ask("known"))
    door.events()
    first, transport = door.protocol, door.transport
    door.connect()

    for protocol in (first, door.protocol, first):
        protocol.data_received(ask("known"))
    await door.rest()

    assert [event.count for event in door.api.events.events] == [3]
    ids = re.findall(rb"req_[0-9a-f]+", bytes(transport.written + door.transport.written))
    known = [id_.encode() for e in door.api.events.events for id_ in ids_of(e)]
    assert sorted(ids) == sorted(known)


async def test_a_request_that_is_given_up_takes_no_answer_of_others_along(door: EntryPoint) -> None:
    await door.send(ask("known"))
    head = ask("known").partition(b"content-length")[0]
    head += b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    door.protocol.data_received(head + b"no chunk\r\n")
    refused = door.transport
    door.connect()

    # In the iteration of the event loop in which the request asks for its body.
    asyncio.get_running_loop().call_soon(door.protocol.data_received, ask("known"))
    await door.rest()

    assert re.findall(rb"HTTP/1.1 (\d+)", refused.written) == [b"400"]
    assert answers(door) == [b"hit; detail=memory"]
