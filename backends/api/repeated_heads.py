"""Recognizes requests whose head repeats an earlier one, and does not parse them again.

A gateway sends the same head with every call, but for the length at its end. Calls are then
answered without ASGI where that is possible.
"""

from typing import Final

from typing_extensions import override

from sluicegate.backends.api.calls import CallHandler
from sluicegate.wire.http.connection import Connection, Front
from sluicegate.wire.http.exchange import Exchange
from sluicegate.wire.http.messages import Headers, Scope

_LENGTH: Final = b"\r\ncontent-length: "
_END: Final = b"\r\n\r\n"
# Digits of a length: what arrives in one piece is shorter than that.
_MOST_DIGITS: Final = 9


class RepeatedHeads(Front):
    """Answers requests of a connection that arrive whole and repeat the head of an earlier one.

    The earlier request was parsed. Its head was the same up to the length at the end. Every other
    request goes to the parser, and the head that was parsed last is the one that is recognized.
    """

    def __init__(self, calls: CallHandler, connection: Connection) -> None:
        self._calls = calls
        self._connection = connection
        self._head: bytes | None = None
        self._scope: Scope = {}
        self._is_call = False

    @override
    def take(self, data: bytes) -> bytes:
        """Answer a request with the known head; return every other one."""
        head = self._head
        if head is None or not data.startswith(head):
            return data
        body = _whole_body(data, len(head))
        if body is None:
            return data
        exchange = self._connection.begin_whole(self._scope, body)
        more = self._calls.begin(body, exchange) if self._is_call else {}
        if more is not None:
            exchange.scope = {**self._scope, **more}
            self._connection.run(exchange)
        return b""

    @override
    def learn(self, data: bytes, exchange: Exchange, headers: Headers) -> None:
        """Keep the head of a request that `data` is all of."""
        length, scope = data.find(_LENGTH), exchange.scope
        is_plain = exchange.keeps_alive and exchange.has_body and not exchange.expects_continue
        if length < 0 or scope is None or not is_plain:
            return
        end = length + len(_LENGTH)
        body = _whole_body(data, end)
        # The parser must have seen the same: nothing in the head may be read in two ways.
        if body is None or _content_length(headers) != len(body) or _END in data[:end]:
            return
        self._head = data[:end]
        self._scope = {
            **scope,
            "headers": [header for header in headers if header[0] != b"content-length"],
        }
        self._is_call = self._calls.is_authenticated_call(self._scope)


def _content_length(headers: Headers) -> int | None:
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if len(lengths) == 1 and len(lengths[0]) <= _MOST_DIGITS else None


def _whole_body(data: bytes, start: int) -> bytes | None:
    """Return the body if `data` ends with it. The digits of its length begin at `start`."""
    end = data.find(_END, start, start + _MOST_DIGITS + len(_END))
    digits = data[start:end] if end > start else b""
    if not digits.isdigit():
        return None
    body = data[end + len(_END) :]
    return body if len(body) == int(digits) else None
