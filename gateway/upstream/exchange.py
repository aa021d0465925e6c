"""Exchanges a call and its answer with a backend over a kept connection, by callbacks.

A task for each call, which waits for the answer, would cost more than the rest of the call does.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from gateway.tasks import log_failure
from gateway.upstream.base import CallFailed, Cause, SentRequest, TransportError
from gateway.upstream.shared_call import SharedCall
from wire.protocol import UNREADABLE, Refusal

MAX_REFUSAL_BYTES = 64 * 1024
# Comparing with a member of an enumeration takes longer.
_OK = HTTPStatus.OK.value

_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


class CallExchange:
    """Delivers the answer of a call that was sent; `on_end` is called once it is over."""

    def __init__(self, shared: SharedCall, on_end: Callable[["CallExchange"], object]) -> None:
        self._shared = shared
        self._on_end = on_end
        self._sent: SentRequest | None = None
        self._refusal = b""
        self._loop = asyncio.get_running_loop()

    def follow(self, sent: SentRequest) -> None:
        """Deliver what arrives in answer to the request that was just `sent`."""
        self._sent = sent
        self._silent_at = self._shared.silent_at()
        self._timer = self._loop.call_at(self._silent_at, self._time_out)
        self._shared.on_abandoned(self.cancel)

    def cancel(self) -> None:
        """Receive nothing more; callers that still wait are told that it was cancelled."""
        self._end(asyncio.CancelledError())

    def note_change(self) -> None:
        """Deliver what has arrived since the last time, or how the connection was lost."""
        sent = self._sent
        if sent is None:
            return
        try:
            self._deliver(sent)
        except CallFailed as error:
            self._end(error)
        except Exception as bug:  # noqa: BLE001 - whatever it is, no caller may go on waiting
            log_failure(bug)
            self._end(bug)

    def _deliver(self, sent: SentRequest) -> None:
        status = sent.status
        is_refused = status != _OK
        if status and (chunk := sent.take()):
            if is_refused:
                self._refusal += chunk
                check_size(len(self._refusal), MAX_REFUSAL_BYTES)
            else:
                self._shared.feed(chunk)
            self._silent_at = self._shared.silent_at()
        if sent.is_read:
            self._end(refused(status, self._refusal) if is_refused else None)
        elif sent.error is not None:
            raise explain_failure(sent.error, has_begun=status != 0)

    def _time_out(self) -> None:
        if self._loop.time() < self._silent_at:  # something was heard meanwhile
            self._timer = self._loop.call_at(self._silent_at, self._time_out)
        else:
            self._end(CallFailed(Cause.TIMED_OUT, "the backend did not answer in time"))

    def _end(self, error: BaseException | None) -> None:
        if self._sent is None:
            return
        sent, self._sent = self._sent, None
        self._timer.cancel()
        sent.close()
        self._on_end(self)
        if error is None:
            self._shared.end()
        else:
            self._shared.fail(error)


def explain_failure(error: TransportError, *, has_begun: bool) -> CallFailed:
    """Return what a lost connection means for a call, whose answer may have begun."""
    if not has_begun:
        return CallFailed(Cause.UNREACHABLE, f"the backend cannot be reached ({error})")
    return CallFailed(Cause.CUT, f"the backend closed the connection in its answer ({error})")


def check_size(size: int, limit: int) -> None:
    """Raise `CallFailed` where an answer has more than `limit` bytes."""
    if size > limit:
        raise CallFailed(Cause.CUT, f"the backend's answer is over {limit} bytes")


def refused(status: int, body: bytes) -> CallFailed:
    """Return the error of an answer of this `status`, which is none of success."""
    try:
        refusal = _refusal_decoder.decode(body)
    except UNREADABLE:
        # Something in between answered, or no backend of ours.
        return CallFailed(Cause.CUT, f"the backend answered with status {status}")
    return CallFailed(
        Cause.REFUSED,
        refusal.detail,
        status=status,
        code=refusal.code,
        retryable=refusal.retryable,
        retry_after=refusal.retry_after,
    )
