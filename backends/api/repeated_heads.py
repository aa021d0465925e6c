"""Recognizes requests whose head repeats that of an earlier one, and does not parse them again.

Calls are then answered without ASGI where that is possible.

A gateway sends the same head with every call, but for the length at its end.
"""

import asyncio
from typing import Any

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from backends.api.asgi import Scope
from backends.api.calls import CallHandler
from backends.api.direct_calls import DirectCall
from backends.api.write_coalescing import WriteCoalescingProtocol

_LENGTH = b"\r\ncontent-length: "
_END = b"\r\n\r\n"
# Digits of a length: what arrives in one piece is shorter than that.
_MOST_DIGITS = 9


class RepeatedHeadProtocol(WriteCoalescingProtocol):
    """Begins a request at once that arrives whole, with the head of an earlier one.

    That one was parsed: it had this head, and a body of the length at its end. Whatever is not
    exactly so, or comes while a request is under way, goes to the parser, and the head of what was
    parsed last is the one that is recognized.
    """

    _head: bytes | None = None
    _repeated_scope: Any = None
    _is_call = False
    _answered = 0.0
    """When the last call was answered that ASGI did not see."""

    def __init__(self, *args: Any, calls: CallHandler | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls = calls

    @override
    def data_received(self, data: bytes) -> None:
        is_idle = not (self._is_in_head or self._is_in_body or self.pipeline) and (
            self.cycle is None or self.cycle.response_complete
        )
        if is_idle and self._head is not None and data.startswith(self._head):
            body = _whole_body(data, len(self._head))
            if body is not None:
                scope = self._begin_call(body)
                if scope is not None:
                    self._begin(body, scope)
                return
        before = self.cycle
        super().data_received(data)
        if is_idle and self.cycle is not before:
            self._remember(data)

    def begin_response(self, call: DirectCall) -> None:
        """Have a call be the request in progress."""
        self.cycle = call  # type: ignore[assignment]  # all that the protocol uses of one

    def write(self, data: bytes) -> None:
        """Send a part of a response."""
        self._coalescing.write_now(data)

    def end_response(self, *, keep_alive: bool) -> None:
        """End the response to a call; begin the next request if it came meanwhile."""
        if not keep_alive:
            self.transport.close()
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
            return
        self.server_state.total_requests += 1
        self._answered = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wait_for_request(self.timeout_keep_alive)

    @override
    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for long: the timer is not set anew by each call."""
        self.timeout_keep_alive_task = None
        waited = self.loop.time() - self._answered
        if not self.cycle.response_complete:
            self._wait_for_request(self.timeout_keep_alive)
        elif waited < self.timeout_keep_alive:
            self._wait_for_request(self.timeout_keep_alive - waited)
        else:
            super().timeout_keep_alive_handler()

    def _wait_for_request(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _begin_call(self, body: bytes) -> Scope | None:
        """Answer a call without ASGI, unless what is sent waits, or the backend stops.

        Return the scope of what ASGI has to answer.
        """
        scope: Scope = self._repeated_scope
        is_held_up = self.flow.write_paused or self.server_state.default_headers
        if not self._is_call or is_held_up or self._calls is None:
            return scope
        return self._calls.begin(body, self, scope)

    def _begin(self, body: bytes, scope: Any) -> None:
        self._unset_keepalive_if_required()
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        self.cycle.body = body  # type: ignore[assignment]  # read, not changed
        self.cycle.more_body = False
        self.cycle.message_event.set()
        self._start_asgi_task(self.cycle, self.app)

    def _remember(self, data: bytes) -> None:
        """Keep the head of a request that `data` was all of."""
        cycle = self.cycle
        is_plain = cycle.keep_alive and not (cycle.more_body or cycle.waiting_for_100_continue)
        length = data.find(_LENGTH)
        if not is_plain or self.pipeline or length < 0:
            return
        end = length + len(_LENGTH)
        body = _whole_body(data, end)
        # The parser must have seen the same: nothing in the head may be read in two ways.
        if (
            body is not None
            and _content_length(self.headers) == len(body)
            and _END not in data[:end]
        ):
            self._head = data[:end]
            headers = [header for header in self.headers if header[0] != b"content-length"]
            self._repeated_scope = scope = {**self.scope, "headers": headers}
            self._is_call = self._calls is not None and self._calls.is_authenticated_call(scope)


def _content_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if len(lengths) == 1 and len(lengths[0]) <= _MOST_DIGITS else None


def _whole_body(data: bytes, start: int) -> bytes | None:
    """Return the body behind a head whose length begins at `start`, if it is all there is."""
    end = data.find(_END, start, start + _MOST_DIGITS + len(_END))
    digits = data[start:end] if end > start else b""
    if not digits.isdigit():
        return None
    body = data[end + len(_END) :]
    return body if len(body) == int(digits) else None
