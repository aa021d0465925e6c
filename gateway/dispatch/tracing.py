"""Declares the tracer that opens a span around each call of a backend."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from gateway.types import Endpoint


class CallTracer(Protocol):
    """Traces calls; the context sees the `CallFailed` of a call that failed."""

    def on_call(
        self, endpoint: Endpoint, *, items: int, traceparent: str
    ) -> AbstractContextManager[str]:
        """Return a context around the call that gives the `traceparent` to send with it."""
        ...


class NoTracing:
    """Passes the request's own `traceparent` on."""

    def on_call(
        self, endpoint: Endpoint, *, items: int, traceparent: str
    ) -> AbstractContextManager[str]:
        """See `CallTracer.on_call`."""
        return nullcontext(traceparent)
