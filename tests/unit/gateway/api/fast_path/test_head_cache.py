"""The cache of heads is not filled by requests each of which has another head."""

import pytest

from sluicegate.gateway.api.fast_path.head_cache import CachedHead, RequestHeadCache
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.types import KeyId, Principal, TenantId
from tests.support.api import KEY
from tests.support.entry_points import EntryPoint, ask

pytestmark = pytest.mark.anyio


@pytest.fixture
async def entry_point(anyio_backend: str) -> EntryPoint:
    return EntryPoint(fast=True)


async def test_a_request_with_an_idempotency_key_is_the_applications_and_leaves_no_head_behind(
    entry_point: EntryPoint,
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    heads = entry_point.api.fast_path.heads
    await entry_point.send(ask("known"))
    before = len(heads._heads)

    for number in range(3):
        keyed = b"%b\r\nIdempotency-Key: %d\r\n\r\n%b" % (head, number, body)
        answer = await entry_point.send(keyed)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")

    assert len(heads._heads) == before


async def test_a_request_that_the_caller_named_has_an_event_of_its_own_and_is_not_replayed(
    entry_point: EntryPoint,
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    heads = entry_point.api.fast_path.heads
    for _ in range(2):  # the second is a hit that equal requests repeat
        await entry_point.send(ask("known"))
    before = len(heads._heads)

    for number in range(3):
        named = b"%b\r\nX-Client-Request-Id: order-%d\r\n\r\n%b" % (head, number, body)
        answer = await entry_point.send(named)
        assert b"x-client-request-id: order-%d\r\n" % number in answer
    await entry_point.send(ask("known"))

    events = entry_point.api.events.events
    named_by = [event.client_id for event in events for _ in range(event.count)]
    assert named_by == ["", "", "order-0", "order-1", "order-2", ""]
    assert len(heads._heads) == before


@pytest.mark.parametrize("name", [b"X-Request-Id", b"x-request-id", b"X-Client-Request-ID"])
async def test_heads_that_differ_by_the_callers_id_alone_are_parsed_once(
    entry_point: EntryPoint, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    parsed: list[bytes] = []
    read = RequestHeadCache._read

    def record(self: RequestHeadCache, head: bytes) -> CachedHead | None:
        parsed.append(head)
        return read(self, head)

    monkeypatch.setattr(RequestHeadCache, "_read", record)
    head, _, body = ask("known").partition(b"\r\n\r\n")

    for number in range(5):
        named = b"%b\r\n%b: order-%d\r\n\r\n%b" % (head, name, number, body)
        answer = await entry_point.send(named)
        assert answer.count(b"x-client-request-id: order-%d\r\n" % number) == 1
    answer = await entry_point.send(ask("known"))

    assert len(parsed) == 1
    assert b"x-client-request-id" not in answer


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("lines", "client_id", "proxy_id"),
    [
        (b"X-Request-Id: edge-1", "", "edge-1"),
        (b"X-Client-Request-Id: order-1", "order-1", ""),
        (b"X-Request-Id: edge-1\r\nX-Client-Request-Id: order-1", "order-1", ""),
        (b"X-Client-Request-Id: order-1\r\nx-request-id: edge-1", "order-1", ""),
        (b"X-Request-Id: edge-1\r\nX-Client-Request-Id: no id", "", "edge-1"),
    ],
)
async def test_the_customers_id_comes_before_that_of_a_proxy(
    lines: bytes, client_id: str, proxy_id: str, *, fast: bool
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    entry_point = EntryPoint(fast=fast)

    answers = [
        await entry_point.send(b"%b\r\n%b\r\n\r\n%b" % (head, lines, body)) for _ in range(3)
    ]

    line = b"x-client-request-id: %b\r\n" % (client_id or proxy_id).encode()
    assert [answer.count(line) for answer in answers] == [1, 1, 1]
    events = entry_point.api.events.events
    assert [(e.client_id, e.proxy_id, e.count) for e in events] == [(client_id, proxy_id, 1)] * 3


@pytest.mark.parametrize(
    "lines",
    [
        b"X-Request-Id: a\r\nX-Request-Id: b",
        b"X-Client-Request-Id: a\r\nX-Client-Request-Id: b",
        b"X-Request-Id: a\r\nX-Client-Request-Id: b",
        b"X-Request-Id: a\r\nX-Client-Request-Id: b\r\nX-Request-Id: c",
        b"X-Request-Id: not an id\r\nX-Client-Request-Id: b",
        b"X-Request-Id: a\r\n b",
        b"X-Request-Id:a",
    ],
)
async def test_ids_of_unusual_form_mean_what_the_parser_says(lines: bytes) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    named = b"%b\r\n%b\r\n\r\n%b" % (head, lines, body)

    fast, slow = EntryPoint(fast=True), EntryPoint(fast=False)
    answers = [await each.send(named) for each in (fast, fast, slow)]

    echoed = [
        [line for line in answer.split(b"\r\n") if line.startswith(b"x-client-request-id")]
        for answer in answers
    ]
    assert echoed[0] == echoed[1] == echoed[2]


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [(b"POST ", b"GET ", b"405"), (b"Bearer ", b"Bearer wrong", b"401")],
)
@pytest.mark.parametrize("fast", [False, True])
async def test_a_refusal_repeats_the_callers_id(
    old: bytes, new: bytes, status: bytes, *, fast: bool
) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    assert old in head
    refused = b"%b\r\nX-Request-Id: order-1\r\n\r\n%b" % (head.replace(old, new), body)

    answer = await EntryPoint(fast=fast).send(refused)

    assert answer.split(b" ", 2)[1] == status
    assert b"x-client-request-id: order-1\r\n" in answer


async def test_whole_requests_that_come_once_do_not_push_out_those_that_return(
    entry_point: EntryPoint,
) -> None:
    heads = entry_point.api.fast_path.heads
    for _ in range(3):
        await entry_point.send(ask("returns"))
    parsed = heads.find_replayable(ask("returns"))
    assert parsed is not None

    for number in range(10_000):
        heads.add_replayable(b"%d" % number, parsed)
        if number % 1000 == 0:
            heads.find_replayable(ask("returns"))

    assert heads.find_replayable(ask("returns")) is parsed
    assert heads.find_replayable(b"0") is None


async def test_a_key_that_is_added_after_it_was_refused_reaches_the_fast_path(
    entry_point: EntryPoint,
) -> None:
    api, text = entry_point.api, "sk-a-key-that-is-made-later"
    request = ask("known").replace(KEY.encode(), text.encode())
    head = request.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    heads = api.fast_path.heads

    refused = await entry_point.send(request)
    between = (heads.find(head), len(heads._heads))
    principal = Principal(tenant=TenantId("acme"), key=KeyId("key_new"))
    api.keys.replace_keys({principal.key: [(bytes.fromhex(hash_key(text)), principal)]})
    answer = await entry_point.send(request)

    assert refused.startswith(b"HTTP/1.1 401 ")
    assert between == (None, 0)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    found = heads.find(head)
    assert found is not None
    assert found.known.principal is principal


async def test_heads_that_differ_by_the_length_of_the_body_alone_are_parsed_once(
    entry_point: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []
    read = RequestHeadCache._read

    def record(self: RequestHeadCache, head: bytes) -> CachedHead | None:
        parsed.append(head)
        return read(self, head)

    monkeypatch.setattr(RequestHeadCache, "_read", record)

    for length in (1, 10, 100, 1000):
        answer = await entry_point.send(ask("x" * length))
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")

    assert len(parsed) == 1


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"", 400),
        (b"\r\nTransfer-Encoding: chunked", 400),
        (b"\r\nContent-Length: %d\r\nContent-Length: %d", 400),
        (b"\r\nContent-Length: %d\r\ncontent-length: 1", 400),
        (b"\r\nContent-Length: 0", 400),
        (b"\r\nContent-Length: 99999999", 413),
        (b"\r\nContent-Length: %d\r\n 1", 400),
        (b"\r\nContent-Length: %dx", 400),
        (b"\r\nX-Content-Length: %d\r\nContent-Length: %d", 200),
        (b"\r\nContent-Length: 0%d", 200),
        (b"\r\nContent-Length:%d", 200),
    ],
)
async def test_lengths_of_unusual_form_mean_what_the_parser_says(lines: bytes, status: int) -> None:
    head, _, body = ask("known").partition(b"\r\n\r\n")
    start = head[: head.index(b"\r\ncontent-length")]
    usual = start + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    fast, slow = EntryPoint(fast=True), EntryPoint(fast=False)
    assert (await fast.send(usual)).startswith(b"HTTP/1.1 200 OK\r\n")

    unusual = start + lines.replace(b"%d", b"%d" % len(body)) + b"\r\n\r\n" + body
    answers = [(await each.send(unusual)).split(b"\r\n")[0] for each in (fast, slow)]

    assert answers[0] == answers[1]
    assert answers[0].startswith(b"HTTP/1.1 %d" % status)
