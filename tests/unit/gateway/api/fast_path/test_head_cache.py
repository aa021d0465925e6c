"""The cache of heads is not filled by requests each of which has another head."""

import msgspec
import pytest

from tests.support.api import KEY
from tests.support.entry_points import EntryPoint

pytestmark = pytest.mark.anyio


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    return EntryPoint(fast=True)


def ask(text: str) -> bytes:
    body = msgspec.json.encode({"model": "sentiment", "input": text})
    head = f"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def test_a_request_with_an_idempotency_key_is_the_applications_and_leaves_no_head_behind(
    entry_point: EntryPoint,
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    heads = entry_point.api.fast_path.heads
    await entry_point.send(ask("known"))
    before = len(heads)

    for number in range(3):
        keyed = b"%b\r\nIdempotency-Key: %d\r\n\r\n%b" % (head, number, body)
        answer = await entry_point.send(keyed)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")

    assert len(heads) == before


async def test_a_request_that_the_caller_named_has_an_event_of_its_own_and_is_not_replayed(
    entry_point: EntryPoint,
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    heads = entry_point.api.fast_path.heads
    await entry_point.send(ask("known"))
    before = len(heads)

    for number in range(3):
        named = b"%b\r\nX-Request-Id: order-%d\r\n\r\n%b" % (head, number, body)
        answer = await entry_point.send(named)
        assert b"x-client-request-id: order-%d\r\n" % number in answer
    await entry_point.send(ask("known"))

    events = entry_point.api.events.events
    named_by = [event.client_id for event in events for _ in range(event.count)]
    assert named_by == ["", "order-0", "order-1", "order-2", ""]
    assert len(heads) == before
