"""What the gateway asks of a client of backends, and how such a client fails."""

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from backends.protocol import BackendState, Call, Done, Failed, Report
from gateway.types import Endpoint

Receive = Callable[[Done | Failed], None]


class Cause(StrEnum):
    """Why a call, or the rest of it, was not answered."""

    UNREACHABLE = "unreachable"
    """No connection, or it closed before any answer."""
    CUT = "cut"
    """The answer began and ended too early, or could not be read."""
    TIMED_OUT = "timed_out"
    """Silence for as long as the caller was willing to wait."""
    REFUSED = "refused"
    """The backend is alive and will not do it; `code` says why."""


class CallFailed(Exception):
    """A call did not end with a report. Outcomes received before stay valid.

    `retryable` says whether another backend may do better; a refusal has a `status` and a `code`.
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

    Cancelling a method is safe at any time: nothing is received any more, and the connection and
    its slot are given back.
    """

    async def call(
        self,
        endpoint: Endpoint,
        call: Call,
        *,
        deadline: float,
        patience: float,
        receive: Receive,
    ) -> Report:
        """Pass every outcome to `receive` the moment it arrives, and return the closing report.

        Ends by `deadline` (of the event loop's clock), and after `patience` seconds of silence.
        """
        ...

    async def state(self, endpoint: Endpoint, *, patience: float) -> BackendState:
        """Return what the backend says of itself, within `patience` seconds."""
        ...
