"""Declares the client of backends, the transport it sends with, and the errors of both."""

import asyncio
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from sluicegate.gateway.types import Endpoint
from sluicegate.wire.plans import Assignment, PlanTrial, ServingPlans
from sluicegate.wire.protocol import Call, Done, Failed, PlanVerdict, Report, ServingState

Receive = Callable[[Sequence[Done | Failed]], None]
"""Takes outcomes that arrived together."""
OnEnd = Callable[[Report | BaseException], None]
"""Takes the report that ended a call, or the error; `CallFailed` is a backend's."""
_PORTS = {"http": 80, "https": 443}


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


class StartedCall(Protocol):
    """A call that has begun."""

    def cancel(self) -> object:
        """Receive nothing more, not even its end; release the connection and its slot."""
        ...


class BackendClient(Protocol):
    """Calls backends. Raises `CallFailed` and nothing else for anything a backend does.

    Cancelling a method is safe at any time.
    """

    def start_call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        idle_timeout: float,
        receive: Receive,
        on_end: OnEnd,
    ) -> StartedCall:
        """Begin a call, without a task of the caller's.

        Passes outcomes to `receive` the moment they arrive, and the end to `on_end`, once and
        never before this returned. What `receive` raises ends the call; `on_end` must not raise.
        The connection is given up at `deadline` (of the loop's clock), or `idle_timeout` seconds
        after the last byte.

        Raises:
            CallFailed: it cannot begin.
        """
        ...

    async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
        """Return the state that the backend reports, within `time_limit` seconds.

        The cause is `TIMED_OUT` also where the backend takes no connection in time.
        """
        ...

    async def reload(
        self, endpoint: Endpoint, plans: ServingPlans, *, time_limit: float
    ) -> ServingState:
        """Have the backend read its repository again and follow `plans`, unless it has newer ones.

        Returns its state once that is served.
        """
        ...

    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        """Have the backend follow an assignment, unless it has a newer one; return its state."""
        ...

    async def check(
        self, endpoint: Endpoint, trial: PlanTrial, *, time_limit: float
    ) -> PlanVerdict:
        """Have the backend load what a plan would serve, and return what became of it."""
        ...


class TransportError(ConnectionError):
    """There is no connection, it was lost, or no HTTP came over it; the message says which."""


class ConnectTimeout(TransportError):
    """No connection was made in time. The server may only be busy."""


class Origin(NamedTuple):
    """The address of a server, and the name that its certificate must hold."""

    scheme: str
    host: str
    port: int
    server_name: str


class Location(NamedTuple):
    """An origin, its `Host` header, and the path before those of the protocol."""

    origin: Origin
    host: bytes
    path: bytes


def locate(url: str, server_name: str = "") -> Location:
    """Return the location of `url`; `server_name` takes the place of its host in certificates.

    Raises:
        ValueError: `url` is not the URL of a backend.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("a backend's URL begins with `http://` or `https://` and a host")
    port = parts.port or _PORTS[parts.scheme]
    origin = Origin(parts.scheme, parts.hostname, port, server_name or parts.hostname)
    host = parts.netloc.rpartition("@")[2].encode()
    path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
    return Location(origin, host, path.encode())


def explain_early_loss(*, is_tls: bool) -> str:
    """Return why a connection may have been lost before any byte of the response."""
    # The server checks our certificate after our handshake has ended, and may close without alert.
    hint = "is our certificate accepted?" if is_tls else "should the URL be `https://`?"
    return f"the connection was lost before anything came: {hint}"


class Response(Protocol):
    """A response that has begun, or will begin, over the connection that sent the request."""

    on_change: Callable[[], object] | None
    """Is called when something has arrived, or nothing more will; see `wait_for_change`."""

    @property
    def status(self) -> int:
        """The HTTP status; 0 until it has arrived."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all of the body has arrived."""
        ...

    @property
    def error(self) -> TransportError | None:
        """Why no more will arrive, where the connection was lost."""
        ...

    def take(self) -> bytes:
        """Return what has arrived of the body since the last time."""
        ...

    def close(self) -> None:
        """Read no more, and give the connection back; nothing is called any more."""
        ...


async def wait_for_change(response: Response) -> None:
    """Return when something more of a response has arrived.

    Raises:
        TransportError: nothing more will arrive.
    """
    if response.error is not None:
        raise response.error
    changed = asyncio.Event()
    response.on_change = changed.set
    try:
        await changed.wait()
    finally:
        response.on_change = None


class Transport(Protocol):
    """Sends HTTP/1.1 requests. Belongs to one event loop; whoever calls bounds calls and bodies.

    `head` begins with the request line and lacks the length of `body`, which ends it.
    """

    async def send(
        self, origin: Origin, head: bytes, body: bytes, *, connect_timeout: float | None = None
    ) -> Response:
        """Send a request, and return its response, to be closed, once it has begun.

        A new connection may take `connect_timeout` seconds.

        Raises:
            TransportError: no response came.
        """
        ...

    def send_nowait(self, origin: Origin, head: bytes, body: bytes) -> Response | None:
        """Send a request if that needs no waiting. Return its response, which begins later.

        `None`: there is no kept connection that is free, or the body is large.
        """
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...
