"""Exchanges a call and its answer with a backend, and tells the caller of the end once.

A call over a kept connection goes on by callbacks: a task for each call, which waits for the
answer, would cost more than the rest of the call does.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from gateway.tasks import log_failure
from gateway.upstream.base import (
    CallFailed,
    Cause,
    OnEnd,
    Receive,
    SentRequest,
    TransportError,
)
from wire.protocol import UNREADABLE, Call, Done, Failed, Frame, FrameReader, Refusal, Report

MAX_REFUSAL_BYTES = 64 * 1024
# Comparing with a member of an enumeration takes longer.
_OK = HTTPStatus.OK.value
# Seconds of waiting for a slot after which the remaining time of items is computed anew.
_NOTICEABLE_WAIT = 0.01

_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


class CallExchange:
    """Delivers the answer of one call, and tells the caller once how the call ended.

    Either `follow` delivers what arrives over a kept connection, or a task calls `feed` and `end`.
    """

    def __init__(
        self,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
    ) -> None:
        self._call = call
        self._missing = set(range(len(call.items)))
        self._loop = asyncio.get_running_loop()
        self._created = self._loop.time()
        self._deadline = deadline
        self._idle_timeout = idle_timeout
        self._receive = receive
        self._on_end: OnEnd | None = on_end
        self._frames = FrameReader()
        self._report: Report | None = None
        self._refusal = b""
        self._sent: SentRequest | None = None
        self._stop: Callable[[], object] | None = None

    def message(self, sender: int) -> Call:
        """Return the call as `sender` sends it now.

        The time that the call waited for a slot is taken from what remains to its items.
        """
        now, items = self._loop.time(), self._call.items
        if (waited := now - self._created) > _NOTICEABLE_WAIT:
            items = [
                msgspec.structs.replace(item, remaining=item.remaining - waited) for item in items
            ]
        return msgspec.structs.replace(self._call, items=items, sender=sender, sent=now)

    def silent_at(self) -> float:
        """Return the loop time at which the call ends unless something is heard from now on."""
        return min(self._deadline, self._loop.time() + self._idle_timeout)

    def follow(self, sent: SentRequest, on_over: Callable[["CallExchange"], object]) -> None:
        """Deliver what arrives in answer to the request that was just `sent`."""
        self._sent, self._on_over = sent, on_over
        self._silent_at = self.silent_at()
        self._timer = self._loop.call_at(self._silent_at, self._time_out)

    def on_cancel(self, stop: Callable[[], object]) -> None:
        """Call `stop` if the caller leaves."""
        self._stop = stop

    def cancel(self) -> None:
        """Receive nothing more, and tell the caller nothing."""
        self._on_end = None
        if self._stop is not None:
            self._stop()
        self._close(asyncio.CancelledError())

    def close(self) -> None:
        """Receive nothing more; the caller is told that the call was cancelled."""
        self._close(asyncio.CancelledError())

    def note_change(self) -> None:
        """Deliver what has arrived since the last time, or how the connection was lost."""
        sent = self._sent
        if sent is None:
            return
        try:
            self._deliver(sent)
        except CallFailed as error:
            self._close(error)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the caller may not go on waiting
            log_failure(bug)
            self._close(bug)

    def feed(self, chunk: bytes) -> None:
        """Deliver the frames that end in the next `chunk` of the answer.

        Raises:
            CallFailed: it cannot be decoded.
        """
        frames: list[Frame] = []
        try:
            self._frames.feed(chunk, frames)
        except msgspec.DecodeError as error:
            raise CallFailed(Cause.CUT, "the backend's answer cannot be read") from error
        finally:
            outcomes: list[Done | Failed] = []
            for frame in frames:
                if isinstance(frame, Report):
                    self._report = frame
                else:
                    self._report = None
                    outcomes.append(frame)
            if outcomes and self._on_end is not None:
                self._missing.difference_update([outcome.index for outcome in outcomes])
                self._receive(outcomes)
            if not self._missing and self._report is not None:
                self.end(self._report)  # the caller need not wait for the end of the bytes

    def end(self, how: Report | BaseException | None = None) -> None:
        """Tell the caller of the end. Without `how`, the answer has ended where it should."""
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            cut = CallFailed(Cause.CUT, "the backend's answer ended too early")
            on_end(how or self._report or cut)

    def _deliver(self, sent: SentRequest) -> None:
        status = sent.status
        is_refused = status != _OK
        if status and (chunk := sent.take()):
            if is_refused:
                self._refusal += chunk
                check_size(len(self._refusal), MAX_REFUSAL_BYTES)
            else:
                self.feed(chunk)
            self._silent_at = self.silent_at()
        if sent.is_read:
            self._close(refused(status, self._refusal) if is_refused else None)
        elif sent.error is not None:
            raise explain_failure(sent.error, has_begun=status != 0)

    def _time_out(self) -> None:
        if self._loop.time() < self._silent_at:  # something was heard meanwhile
            self._timer = self._loop.call_at(self._silent_at, self._time_out)
        else:
            self._close(CallFailed(Cause.TIMED_OUT, "the backend did not answer in time"))

    def _close(self, error: BaseException | None) -> None:
        """Give the connection back, and tell the caller of the end."""
        if self._sent is None:
            return
        sent, self._sent = self._sent, None
        self._timer.cancel()
        sent.close()
        self._on_over(self)
        self.end(error)


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
