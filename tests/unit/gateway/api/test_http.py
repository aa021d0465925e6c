"""Reading a body: in one piece, in many, too much of it, and from a caller who leaves."""

import pytest
from litestar.types import HTTPReceiveMessage, Message, Receive

from gateway.api.http import (
    ClientDisconnected,
    HttpReply,
    check_length,
    headers_by_name,
    read_body,
    respond,
)
from gateway.errors import InvalidRequest, PayloadTooLarge

pytestmark = pytest.mark.anyio


def arriving(*parts: bytes, leaves: bool = False) -> Receive:
    """Return a body that arrives in `parts`, and its caller's leaving after them."""
    messages: list[HTTPReceiveMessage] = [
        {"type": "http.request", "body": part, "more_body": leaves or number < len(parts)}
        for number, part in enumerate(parts, 1)
    ]
    if leaves:
        messages.append({"type": "http.disconnect"})
    queue = iter(messages)

    async def receive() -> HTTPReceiveMessage:
        return next(queue)

    return receive


@pytest.mark.parametrize(
    "parts", [(b"",), (b"0123456789",), (b"01234", b"56789"), (b"0" * 9, b"", b"1", b"")]
)
async def test_a_body_is_its_parts_put_together(parts: tuple[bytes, ...]) -> None:
    assert await read_body(arriving(*parts), limit=10) == b"".join(parts)


@pytest.mark.parametrize("parts", [(b"0" * 11,), (b"0" * 10, b"1"), (b"0" * 6, b"0" * 6, b"never")])
async def test_a_body_over_the_limit_is_refused_with_the_limit(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(PayloadTooLarge, match="10 bytes"):
        await read_body(arriving(*parts), limit=10)


@pytest.mark.parametrize("parts", [(), (b"01",), (b"01", b"23")])
async def test_a_caller_who_leaves_has_sent_no_body(parts: tuple[bytes, ...]) -> None:
    with pytest.raises(ClientDisconnected):
        await read_body(arriving(*parts, leaves=True), limit=10)


@pytest.mark.parametrize("value", [b"", b"0", b"10", b"0" * 5000, b"0" * 5000 + b"10"])
def test_a_length_within_the_limit_is_let_through(value: bytes) -> None:
    check_length(value, limit=10)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"11", PayloadTooLarge),
        (b"0" * 5000 + b"11", PayloadTooLarge),
        (b"-1", InvalidRequest),
        (b"x", InvalidRequest),
    ],
)
def test_a_length_over_the_limit_or_that_is_none_is_refused(
    value: bytes, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        check_length(value, limit=10)


def test_the_first_header_of_a_name_counts() -> None:
    headers = [(b"a", b"1"), (b"b", b"2"), (b"b", b"3")]

    assert headers_by_name(headers) == {b"a": b"1", b"b": b"2"}


async def test_an_answer_gives_its_length() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await respond(send, HttpReply(200, b"a: b\r\n", b"body"))

    start, body = sent
    assert start == {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"a", b"b"), (b"content-length", b"4")],
    }
    assert body == {"type": "http.response.body", "body": b"body", "more_body": False}


def test_lines_of_a_list_are_one_and_several_keys_are_none() -> None:
    headers = [
        (b"cache-control", b"no-cache"),
        (b"x", b"first"),
        (b"authorization", b"Bearer one"),
        (b"cache-control", b"max-age=1"),
        (b"x", b"second"),
        (b"authorization", b"Bearer two"),
    ]

    assert headers_by_name(headers) == {
        b"cache-control": b"no-cache, max-age=1",
        b"x": b"first",
        b"authorization": b"",
    }
