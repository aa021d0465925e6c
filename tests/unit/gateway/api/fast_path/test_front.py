"""The fast path on one connection: at once, in order, and no faster than its peer reads."""

import asyncio
import re
from functools import partial
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.events.hit_run import ids_of
from sluicegate.gateway.types import Rule
from sluicegate.wire.http.timeouts import ConnectionTimeouts
from tests.support.entry_points import EntryPoint, ask

pytestmark = pytest.mark.anyio
_IDLE = ConnectionTimeouts().idle


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    return EntryPoint(fast=True)


def answers(entry_point: EntryPoint) -> list[bytes]:
    """Return how the cache was used for what was answered so far, in its order."""
    parts = bytes(entry_point.transport.written).split(b"cache-status: sluicegate; ")[1:]
    return [part.split(b"\r\n", 1)[0] for part in parts]


async def test_a_hit_is_answered_without_a_task(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))

    entry_point.protocol.data_received(ask("known"))
    tasks = len(entry_point.state.tasks)
    await entry_point.rest()

    assert tasks == 0
    assert entry_point.transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"cache-status: sluicegate; hit; detail=memory\r\n" in entry_point.transport.written


async def test_what_was_decided_before_a_wait_is_not_decided_again(entry_point: EntryPoint) -> None:
    first = await entry_point.send(ask("new"))

    assert b"x-ratelimit-remaining-requests: 59\r\n" in first
    assert len(entry_point.events()) == 1


async def test_a_hit_does_not_overtake_a_miss_on_its_connection(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    entry_point.api.scene.runner.gate.clear()

    entry_point.protocol.data_received(ask("new"))
    entry_point.protocol.data_received(ask("known"))
    await entry_point.rest()
    early = answers(entry_point)
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert early == []
    assert answers(entry_point) == [b"fwd=uri-miss; stored", b"hit; detail=memory"]


async def test_a_miss_is_waited_for_without_the_application(entry_point: EntryPoint) -> None:
    begun = list[object]()
    entry_point.state.app = partial(_begin, begun)

    await entry_point.send(ask("new"))

    assert not begun
    assert entry_point.protocol.answers == 1


async def test_little_is_read_while_an_answer_is_waited_for(entry_point: EntryPoint) -> None:
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new") + ask("newer"))
    held = entry_point.transport.reads
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert not held
    assert entry_point.transport.reads
    assert answers(entry_point) == [b"fwd=uri-miss; stored"] * 2


async def test_a_caller_that_left_is_not_answered(entry_point: EntryPoint) -> None:
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new") + ask("newer"))
    entry_point.transport.close()
    entry_point.leave()
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert entry_point.transport.written == b""
    assert len(entry_point.events()) == 1


async def test_what_is_waited_for_when_the_server_stops_is_answered_last(
    entry_point: EntryPoint,
) -> None:
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new"))
    entry_point.protocol.shutdown()
    closed_early = entry_point.transport.is_closing()
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert not closed_early
    assert answers(entry_point) == [b"fwd=uri-miss; stored"]
    assert b"\r\nconnection: close\r\n" in entry_point.transport.written
    assert entry_point.transport.is_closing()


async def test_a_wait_is_no_silence(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new"))
    now = entry_point.protocol.loop.time()
    for later in (0.0, _IDLE - 1.0, _IDLE + 1.0):
        entry_point.protocol.check(now + later)

    assert not entry_point.transport.is_closing()
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()


async def test_a_peer_that_never_reads_what_it_waited_for_is_left(entry_point: EntryPoint) -> None:
    entry_point.protocol.data_received(ask("new"))
    entry_point.protocol.pause_writing()
    await entry_point.rest()
    assert not entry_point.transport.written

    entry_point.protocol.check(entry_point.protocol.loop.time() + 3600)
    assert entry_point.transport.is_closing()
    entry_point.leave()
    await entry_point.rest()


async def test_a_peer_that_reads_again_gets_what_it_waited_for(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    entry_point.api.scene.cache.has_memory = False
    for text in ("known", "new"):
        entry_point.protocol.data_received(ask(text) + ask(text))
        entry_point.protocol.pause_writing()
        await entry_point.rest()
        assert answers(entry_point) == []
        entry_point.protocol.resume_writing()
        await entry_point.rest()
        found = answers(entry_point)
        entry_point.transport.written.clear()

        assert found[1:] == [b"hit; detail=redis"]
        assert found[0] == (b"hit; detail=redis" if text == "known" else b"fwd=uri-miss; stored")


async def test_what_was_read_before_the_server_stops_is_answered(entry_point: EntryPoint) -> None:
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new") + ask("newer") + ask("newest"))
    entry_point.protocol.shutdown()
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert answers(entry_point) == [b"fwd=uri-miss; stored"] * 3
    heads = bytes(entry_point.transport.written).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert [b"connection: close" in head for head in heads] == [False, False, True]
    assert entry_point.transport.is_closing()


async def test_a_server_that_stops_reads_no_more_from_those_who_keep_asking(
    entry_point: EntryPoint,
) -> None:
    entry_point.api.scene.runner.gate.clear()
    entry_point.protocol.data_received(ask("new"))
    before = entry_point.transport.reads
    entry_point.protocol.shutdown()
    after = entry_point.transport.reads
    entry_point.protocol.data_received(ask("newer"))  # was under way already
    entry_point.api.scene.runner.gate.set()
    await entry_point.rest()

    assert (before, after, entry_point.transport.reads) == (True, False, False)
    assert answers(entry_point) == [b"fwd=uri-miss; stored"] * 2
    assert entry_point.transport.is_closing()


async def test_a_fault_after_the_cache_was_asked_is_an_answer_and_an_event(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask("known"))
    entry_point.events()
    entry_point.api.scene.cache.has_memory = False
    (key,) = entry_point.api.scene.cache.entries
    entry = entry_point.api.scene.cache.entries[key]
    broken: Any = None  # no payload: not what a cache may return
    entry_point.api.scene.cache.entries[key] = msgspec.structs.replace(entry, payload=broken)

    answer = await entry_point.send(ask("known"))

    assert answer.startswith(b"HTTP/1.1 500")
    assert [event[4] for event in entry_point.events()] == [500]
    entry_point.api.scene.cache.entries[key] = entry
    assert (await entry_point.send(ask("known"))).startswith(b"HTTP/1.1 200")


async def test_a_limit_on_trial_counts_a_miss_once(entry_point: EntryPoint) -> None:
    entry_point.api.limit(Rule(name="trial", unit="requests", capacity=1, window=60.0, shadow=True))

    await entry_point.send(ask("new"))
    await entry_point.send(ask("newer"))

    entry_point.api.metrics.flush()
    labels = {"policy": "trial", "decision": "shadow_refused"}
    counted = entry_point.api.registry.get_sample_value("sluicegate_limit_decisions_total", labels)
    assert counted == 1


async def test_nothing_is_answered_or_read_while_the_peer_does_not_read(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask("known"))

    entry_point.protocol.pause_writing()
    entry_point.protocol.data_received(ask("known") * 3)
    held = (bytes(entry_point.transport.written), entry_point.transport.reads)
    entry_point.protocol.resume_writing()
    await entry_point.rest()

    assert held == (b"", False)
    assert len(answers(entry_point)) == 3
    assert entry_point.transport.reads


async def test_a_key_that_is_gone_is_unknown_to_the_fast_path_at_once(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask("known"))
    await entry_point.send(ask("known"))

    entry_point.api.keys.replace({})

    assert (await entry_point.send(ask("known"))).startswith(b"HTTP/1.1 401")


async def test_another_document_holds_for_the_next_hit(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    await entry_point.send(ask("known"))

    entry_point.api.limit()

    assert b"x-ratelimit" not in await entry_point.send(ask("known"))


async def test_a_connection_that_fell_silent_is_closed(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    now, found = entry_point.protocol.loop.time(), list[bool]()
    for later in (1.0, _IDLE, _IDLE + 2.0):
        entry_point.protocol.check(now + later)
        found.append(entry_point.transport.is_closing())

    assert found == [False, False, True]


async def test_no_answer_leaves_before_its_event_is_kept(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    await entry_point.send(ask("known"))
    entry_point.events()
    seen: list[tuple[bool, int]] = []

    def look() -> None:
        seen.append(
            (
                bool(entry_point.transport.written),
                sum(e.count for e in entry_point.api.events.events),
            )
        )

    entry_point.protocol.data_received(ask("known"))
    look()
    await entry_point.rest()
    look()

    assert seen == [(False, 0), (True, 1)]


async def test_a_known_request_is_refused_when_its_event_cannot_be_kept(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask("known"))
    await entry_point.send(ask("known"))
    entry_point.api.events.failing = True

    refused = await entry_point.send(ask("known"))
    entry_point.api.events.failing = False

    assert refused.startswith(b"HTTP/1.1 503")
    assert b'"event_log_unavailable"' in refused
    assert (await entry_point.send(ask("known"))).startswith(b"HTTP/1.1 200")


async def test_hits_on_several_connections_are_one_event(entry_point: EntryPoint) -> None:
    await entry_point.send(ask("known"))
    await entry_point.send(ask("known"))
    entry_point.events()
    first, transport = entry_point.protocol, entry_point.transport
    entry_point.connect()

    for protocol in (first, entry_point.protocol, first):
        protocol.data_received(ask("known"))
    await entry_point.rest()

    assert [event.count for event in entry_point.api.events.events] == [3]
    ids = re.findall(rb"req_[0-9a-f]+", bytes(transport.written + entry_point.transport.written))
    known = [id_.encode() for e in entry_point.api.events.events for id_ in ids_of(e)]
    assert sorted(ids) == sorted(known)


async def test_hits_in_redis_on_several_connections_are_one_event(entry_point: EntryPoint) -> None:
    entry_point.api.scene.cache.has_memory = False
    await entry_point.send(ask("known"))
    entry_point.events()
    first, transport = entry_point.protocol, entry_point.transport
    entry_point.connect()

    for protocol in (first, entry_point.protocol):
        protocol.data_received(ask("known"))
    await entry_point.rest()

    (event,) = entry_point.api.events.events
    assert (event.count, event.usage.hit) == (2, 1)
    answered = bytes(transport.written + entry_point.transport.written)
    assert answered.count(b"cache-status: sluicegate; hit; detail=redis\r\nage: 0\r\n") == 2
    ids = re.findall(rb"req_[0-9a-f]+", answered)
    assert sorted(ids) == sorted(id_.encode() for id_ in ids_of(event))


async def test_a_hit_in_redis_has_its_event_though_its_caller_left(entry_point: EntryPoint) -> None:
    entry_point.api.scene.cache.has_memory = False
    await entry_point.send(ask("known"))
    entry_point.events()

    entry_point.protocol.data_received(ask("known"))
    entry_point.transport.close()
    await entry_point.rest()

    assert entry_point.transport.written == b""
    assert [event.count for event in entry_point.api.events.events] == [1]


async def test_a_hit_in_redis_is_refused_when_its_event_cannot_be_kept(
    entry_point: EntryPoint,
) -> None:
    entry_point.api.scene.cache.has_memory = False
    await entry_point.send(ask("known"))
    entry_point.api.events.failing = True

    refused = await entry_point.send(ask("known"))

    assert b'"event_log_unavailable"' in refused


async def test_a_request_that_is_given_up_takes_no_answer_of_others_along(
    entry_point: EntryPoint,
) -> None:
    await entry_point.send(ask("known"))
    head = ask("known").partition(b"content-length")[0]
    head += b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    entry_point.protocol.data_received(head + b"no chunk\r\n")
    refused = entry_point.transport
    entry_point.connect()

    # In the iteration of the event loop in which the request asks for its body.
    asyncio.get_running_loop().call_soon(entry_point.protocol.data_received, ask("known"))
    await entry_point.rest()

    assert re.findall(rb"HTTP/1.1 (\d+)", refused.written) == [b"400"]
    assert answers(entry_point) == [b"hit; detail=memory"]


async def _begin(begun: list[object], scope: object, _receive: object, _send: object) -> None:
    begun.append(scope)


async def test_a_request_that_is_given_up_while_it_is_looked_up_has_one_event(
    entry_point: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene, held = entry_point.api.scene, list[Any]()
    scene.cache.has_memory = False

    def hold(keys: Any, on_done: Any, *_: Any, **__: Any) -> None:
        held.append((keys, on_done))

    monkeypatch.setattr(scene.cache, "lookup_nowait", hold)
    entry_point.protocol.data_received(ask("new"))
    for answering in tuple(entry_point.state.tasks):
        answering.cancel()
    await entry_point.rest()
    ((keys, on_done),) = held
    on_done([None] * len(keys))
    await entry_point.rest()

    assert entry_point.transport.written.startswith(b"HTTP/1.1 503 ")
    assert len(entry_point.events()) == 1
    assert list(scene.cache.released) == list(keys)
    assert scene.runner.begun == 0
