"""Exchanges a call and its answer with a backend, and tells the caller of the end once.

An answer is delivered by callbacks: a task for each call, which waits for the answer, would cost
more than the rest of the call does.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from sluicegate.gateway.errors import Overloaded
from sluicegate.gateway.tasks import log_failure
from sluicegate.gateway.upstream.base import (
    CallFailed,
    Cause,
    OnEnd,
    Receive,
    Response,
    TransportError,
    wait_for_change,
)
from sluicegate.wire.protocol import (
    UNREADABLE,
    Call,
    Done,
    Failed,
    Frame,
    FrameReader,
    Refusal,
    Report,
)

MAX_REFUSAL_BYTES = 64 * 1024
# Comparing with a member of an enumeration takes longer.
_OK = HTTPStatus.OK.value
READING = 0.01
"""Seconds in which an event loop reads what has already arrived."""
# Seconds of waiting for a turn after which the remaining time of items is computed anew.
_NOTICEABLE_WAIT = 0.01

_refusal_decoder = msgspec.msgpack.Decoder(Refusal)


class CallExchange:
    """Delivers the answer of one call, and tells the caller once how the call ended.

    A call first waits for its turn. `begin` returns what to send, and `follow` takes the response.
    `on_over` is called at the end, before the caller is told.
    """

    def __init__(
        self,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
        on_over: "Callable[[CallExchange], object]",
    ) -> None:
        self._call = call
        self._missing = set(range(len(call.items)))
        self._loop = asyncio.get_running_loop()
        self._created = self._loop.time()
        self._deadline = deadline
        self._idle_timeout = idle_timeout
        self._receive = receive
        self._on_end: OnEnd | None = on_end
        self._on_over = on_over
        self._frames = FrameReader()
        self._report: Report | None = None
        self._refusal = b""
        self._connecting: asyncio.Task[None] | None = None
        self._response: Response | None = None
        self._is_over = self._is_last_look = False
        self.has_begun = False
        self._silent_at = min(deadline, self._created + idle_timeout)
        """When the call ends unless something is heard before."""
        self._timer = self._loop.call_at(self._silent_at, self._time_out)

    def begin(self, sender: int) -> Call:
        """Return the call as `sender` sends it now that it has its turn.

        The time that the call waited is taken from what remains to its items, and was no silence of
        the backend.
        """
        self.has_begun = True
        now, items = self._loop.time(), self._call.items
        self._silent_at = min(self._deadline, now + self._idle_timeout)
        if (waited := now - self._created) > _NOTICEABLE_WAIT:
            items = [
                msgspec.structs.replace(item, remaining=item.remaining - waited) for item in items
            ]
        return msgspec.structs.replace(self._call, items=items, sender=sender, sent=now)

    def connect(self, task: "asyncio.Task[None]") -> None:
        """Cancel `task`, which connects and sends, if the call ends before `follow`."""
        self._connecting = task

    def follow(self, response: Response) -> None:
        """Deliver the response to the call, what has arrived of it at once."""
        self._connecting, self._response = None, response
        response.on_change = self._note_change
        if response.status:
            self._note_change()

    def cancel(self) -> None:
        """Receive nothing more, and tell the caller nothing."""
        self._on_end = None
        self.close(asyncio.CancelledError())

    def close(self, error: BaseException | None) -> None:
        """Receive nothing more, and tell the caller of the end.

        Without an `error`, the answer has ended where it should.
        """
        if self._is_over:
            return
        self._is_over = True
        self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._response is not None:
            self._response.close()
        self._on_over(self)
        self._tell(error)

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
                self._tell(self._report)  # the caller need not wait for the end of the bytes

    def _tell(self, how: Report | BaseException | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            end = how or self._report
            on_end(end or CallFailed(Cause.CUT, "the backend's answer ended too early"))

    def _note_change(self) -> None:
        """Deliver what has arrived since the last time, or how the connection was lost."""
        response = self._response
        if response is None or self._is_over:
            return
        try:
            self._deliver(response)
        except CallFailed as error:
            self.close(error)
        except Exception as bug:  # noqa: BLE001 - whatever it is, the caller may not go on waiting
            log_failure(bug)
            self.close(bug)

    def _deliver(self, response: Response) -> None:
        status, chunk = response.status, response.take()
        if chunk and status == _OK:
            self.feed(chunk)
        elif chunk:
            self._refusal += chunk
            check_size(len(self._refusal), MAX_REFUSAL_BYTES)
        if response.is_complete:
            self.close(None if status == _OK else refused(status, self._refusal))
        elif response.error is not None:
            raise explain_failure(response.error, has_begun=status != 0)
        elif chunk:
            self._silent_at = min(self._deadline, self._loop.time() + self._idle_timeout)

    def _time_out(self) -> None:
        now = self._loop.time()
        if now > self._silent_at + READING and not self._is_last_look:
            # After a pause of this process, an answer that arrived meanwhile is read first.
            self._is_last_look, self._silent_at = True, now + READING
        if now < self._silent_at:  # something was heard meanwhile, or may have been
            self._timer = self._loop.call_at(self._silent_at, self._time_out)
        elif self.has_begun:
            self.close(CallFailed(Cause.TIMED_OUT, "the backend did not answer in time"))
        else:
            detail = "the backend has the maximum number of calls in flight"
            self.close(CallFailed(Cause.REFUSED, detail, status=503, code=Overloaded.code))


def explain_failure(error: TransportError, *, has_begun: bool) -> CallFailed:
    """Return what a lost connection means for a call, whose answer may have begun."""
    if not has_begun:
        return CallFailed(Cause.UNREACHABLE, f"the backend cannot be reached ({error})")
    return CallFailed(Cause.CUT, f"the backend closed the connection in its answer ({error})")


def check_size(size: int, limit: int) -> None:
    """Raise `CallFailed` where an answer has more than `limit` bytes."""
    if size > limit:
        raise CallFailed(Cause.CUT, f"the backend's answer is over {limit} bytes")


async def read_body(response: Response, limit: int) -> bytes:
    """Return the whole body of a response.

    Raises:
        TransportError: it ended too early.
        CallFailed: it is longer than `limit` bytes.
    """
    body = bytearray()
    while True:
        body += response.take()
        check_size(len(body), limit)
        if response.is_complete:
            return bytes(body)
        await wait_for_change(response)


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
