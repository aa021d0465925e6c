"""Declares what dispatch needs of a tracer of calls; `CallSpans` of `app/backends.py` is it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gateway.types import Endpoint


class CallTracer(Protocol):
    """Traces calls that are recorded; the context sees the `CallFailed` of one that failed.

    It sees `CancelledError` where the request's deadline, or its caller, ended the call.
    """

    def on_call(
        self, endpoint: Endpoint, *, items: int, traceparent: str
    ) -> AbstractContextManager[str]:
        """Return a context around the call that gives the `traceparent` to send with it."""
        ...

    def records(self, traceparent: str) -> bool:
        """Tell whether calls for a request of this `traceparent` are recorded."""
        ...


class NoTracing:
    """Records nothing."""

    def on_call(
        self, endpoint: Endpoint, *, items: int, traceparent: str
    ) -> AbstractContextManager[str]:
        """See `CallTracer.on_call`."""
        return nullcontext(traceparent)

    def records(self, traceparent: str) -> bool:
        """See `CallTracer.records`."""
        return False
