"""Passes gRPC calls to the application of this worker, without a connection.

A call therefore has the keys, limits, events and errors of a request over HTTP.
"""

import asyncio
from typing import Final

import msgspec
from litestar.types import ASGIApp

from gateway.api.http import Headers
from gateway.api.in_process import ApplicationReply, ApplicationRequest, call_application
from gateway.dialects.oip.errors import OIP_ERRORS, OipError
from gateway.errors import Overloaded
from gateway.tasks import TaskScope, ignore_outcome

_error = msgspec.json.Decoder(OipError).decode


def error_in(reply: ApplicationReply) -> OipError:
    """Return what went wrong."""
    try:
        return _error(reply.body)
    except msgspec.MsgspecError:
        return OipError(error=f"The gateway answered {reply.status}.", code="")


# grpcio bounds calls, and a call that is cancelled leaves its request.
_BUSY: Final = ApplicationReply(
    Overloaded.status,
    [(b"retry-after", b"1")],
    OIP_ERRORS.encode(Overloaded("Too many requests are under way; try again soon."), ""),
)


class ApplicationClient:
    """Calls `app`. As over HTTP, a request goes on after its caller is cancelled.

    `tasks` waits for the requests under way, at most `most` at a time, and has no other tasks.
    """

    def __init__(self, app: ASGIApp, tasks: TaskScope, *, most: int) -> None:
        self._app = app
        self._tasks = tasks
        self._most = most

    async def ask(self, call: ApplicationRequest, headers: Headers) -> ApplicationReply:
        """Return the answer to a call. `headers` include the headers of the caller."""
        if len(self._tasks) >= self._most:
            return _BUSY
        own = [(b"host", b"grpc"), *headers]
        task = self._tasks.create_task(call_application(self._app, call, own))
        task.add_done_callback(ignore_outcome)
        return await asyncio.shield(task)
