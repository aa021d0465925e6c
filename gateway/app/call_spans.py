"""Records a client span around each call of a backend."""

from collections.abc import Iterator
from contextlib import contextmanager

from backends.protocol import CALL_PATH
from gateway.telemetry.tracing import Attributes, Tracer
from gateway.types import Endpoint


class CallSpans:
    """A `CallTracer` of the dispatcher over the tracer of the process."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def on_call(self, endpoint: Endpoint, *, items: int, traceparent: str) -> Iterator[str]:
        """Open a span around a call; the backend's spans go under it."""
        attributes: Attributes = {
            "http.request.method": "POST",
            "url.path": CALL_PATH,
            "sluicegate.region": endpoint.region,
            "sluicegate.backend": endpoint.backend,
            "sluicegate.items": items,
        }
        with self._tracer.span(
            f"POST {CALL_PATH}", parent=traceparent, kind="client", attributes=attributes
        ) as span:
            yield span.traceparent
