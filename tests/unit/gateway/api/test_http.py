"""The length that a body declares, headers by name, and answers in pieces."""

import pytest
from litestar.types import Message

from sluicegate.gateway.api.http import HttpReply, check_length, headers_by_name, respond
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge

pytestmark = pytest.mark.anyio


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
