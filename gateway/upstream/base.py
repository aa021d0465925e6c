"""Declares the client of backends, the transport it sends with, and the errors of both."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from backends.protocol import Call, Done, Failed, Report, ServingState
from gateway.types import Endpoint
from gateway.upstream.transport import Origin

Receive = Callable[[Done | Failed], None]


class Cause(StrEnum):
    """The reason why a call, or the rest of it, was not answered."""

    UNREACHABLE = "unreachable"
    """There is no connection, or it was closed before any response."""
    CUT = "cut"
    """The response ended too early, or could not be decoded."""
    TIMED_OUT = "timed_out"
    """No byte arrived within the caller's idle timeout, or the deadline passed."""
    REFUSED = "refused"
    """The backend refused the call; `code` says why."""


class CallFailed(Exception):
    """A call ended without a report. Outcomes received before stay valid.

    `retryable`: another backend may succeed. A refusal has a `status` and a `code`.
    """

    def __init__(
        self,
        cause: Cause,
        detail: str,
        *,
        status: int = 0,
        code: str = "",
        retryable: bool = True,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.cause = cause
        self.detail = detail
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after


class BackendClient(Protocol):
    """Calls backends. Raises `CallFailed` and nothing else for anything a backend does.

    Cancelling a method is safe at any time: nothing is received afterwards, and the connection and
    its slot are released.
    """

    async def call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
    ) -> Report:
        """Pass every outcome to `receive` the moment it arrives, and return the closing report.

        Ends by `deadline` (of the loop's clock), or `idle_timeout` seconds after the last byte.
        """
        ...

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """Return the state that the backend reports, within `time_limit` seconds."""
        ...


class TransportResponse(Protocol):
    """A status, and a body to be read as it arrives."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    async def read(self) -> bytes:
        """Return what has arrived of the body, nothing at its end.

        Raises:
            TransportError: the body ended too early.
        """
        ...

    def close(self) -> None:
        """Read no more, and give the connection back."""
        ...


class Transport(Protocol):
    """Sends HTTP/1.1 requests. Belongs to one event loop; whoever calls bounds calls and bodies."""

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_timeout: float | None = None
    ) -> TransportResponse:
        """Send a request, and return its response, to be closed, once the head is here.

        `head` begins with the request line and lacks the length of `body`, which ends it. A new
        connection may take `connect_timeout` seconds.

        Raises:
            TransportError: no response came.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
