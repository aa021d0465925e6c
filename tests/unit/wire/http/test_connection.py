"""Requests that are sent at once on one connection: parsed a few at a time, answered in order."""

import asyncio
import re

import pytest

from testing.waiting import until
from tests.support.api import KEY
from tests.support.entry_points import HALF_CLOSE, EntryPoint

pytestmark = pytest.mark.anyio
_BODY = b'{"model":"sentiment","input":"known"}'
_HEAD = b"POST /v1/classify HTTP/1.1\r\nhost: w\r\nauthorization: Bearer %b\r\n" % KEY.encode()
_ASK = _HEAD + b"content-length: %d\r\n\r\n" % len(_BODY) + _BODY
_TINY = b"GET /x HTTP/1.1\r\nhost:\r\n\r\n"


@pytest.fixture(params=["fast path", "application"])
async def entry(anyio_backend: str, request: pytest.FixtureRequest) -> EntryPoint:
    return EntryPoint(fast=request.param == "fast path")


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def test_of_requests_sent_at_once_few_are_parsed_before_others_are_answered(
    entry: EntryPoint,
) -> None:
    count = 600
    entry.protocol.data_received(_TINY * count)
    waiting, reads = [], []

    while statuses(bytes(entry.transport.written)) != [404] * count:
        waiting.append(len(entry.protocol._queue))
        reads.append(entry.transport.reads)
        await asyncio.sleep(0)

    assert max(waiting) < 200
    assert not any(reads[: len(reads) // 2])
    assert entry.transport.reads
    assert statuses(await entry.send(_ASK))[-1:] == [200]


@pytest.mark.parametrize("end", [b"NONSENSE\r\n\r\n", HALF_CLOSE])
async def test_what_ends_many_requests_ends_them_when_all_are_answered(
    entry: EntryPoint, end: bytes
) -> None:
    count = 400
    entry.protocol.data_received(_TINY * count)
    while len(entry.protocol._queue) > 12:  # noqa: ASYNC110 - no iteration may pass
        await asyncio.sleep(0)
    if end is HALF_CLOSE:
        entry.protocol.eof_received()
    else:
        entry.protocol.data_received(end)

    await until(lambda: entry.transport.is_closing() or entry.transport.has_ended)

    last = [] if end is HALF_CLOSE else [400]
    assert statuses(bytes(entry.transport.written)) == [404] * count + last


async def test_a_body_behind_many_requests_is_read_when_its_turn_comes(
    entry: EntryPoint,
) -> None:
    head = _HEAD + b"content-length: 1000\r\n\r\n"
    entry.protocol.data_received(_TINY * 400 + head + _BODY)

    await until(lambda: len(statuses(bytes(entry.transport.written))) == 400)
    await until(lambda: entry.transport.reads)
    entry.protocol.data_received(b" " * (1000 - len(_BODY)) + _ASK)
    await until(lambda: len(statuses(bytes(entry.transport.written))) == 402)

    assert statuses(bytes(entry.transport.written))[-2:] == [200, 200]
