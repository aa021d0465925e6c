"""Begins spans for steps of a request. If tracing is off, spans only pass a trace context on.

A parent span is passed as the string of its trace context (see `trace_context`), and not in context
variables. Work that outlives its request, such as a detached computation, can therefore have a
parent span, too.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import msgspec

from sluicegate.gateway.telemetry.propagation import ContextReader
from sluicegate.gateway.telemetry.spans import NO_ATTRIBUTES, NO_SPAN, Attributes, Span
from sluicegate.wire.metric_declaration import counter

_ID = b"x-request-id: "


class ReplayedHit(msgspec.Struct, frozen=True):
    """A request that the fast path answered from the cache in memory.

    The span of the request has `name` and `attributes`. `times` are in nanoseconds since 1970: when
    the request began, when it was found in the cache, when it was charged, and when it ended.
    """

    name: str
    attributes: Attributes
    model: str
    revision: str
    answer: bytes
    times: Sequence[int]

    @property
    def request_id(self) -> bytes:
        """The request id. It is read from the response's head only when it is needed."""
        start = self.answer.index(_ID) + len(_ID)
        return self.answer[start : self.answer.index(b"\r", start)]


_SPANS: Final = counter(
    "sluicegate_trace_spans_total",
    "Trace spans. `outcome`: `exported`, `failed`, `dropped` (the queue was full).",
    "outcome",
)


class SpanStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the spans of this process since its start."""

    exported: Annotated[int, _SPANS("exported")] = 0
    failed: Annotated[int, _SPANS("failed")] = 0
    dropped: Annotated[int, _SPANS("dropped")] = 0


class Tracer:
    """Begins spans. This base class is used if tracing is off, and records nothing."""

    is_on = False

    def __init__(self, contexts: ContextReader | None = None) -> None:
        self.contexts = contexts or ContextReader()
        self.samples: Callable[[str], bool] = _samples_none
        """Returns whether a request with this trace context is recorded."""
        self.gap: Callable[[], int] = _no_gap
        """Returns a random number that says which of the next requests without a trace context is
        recorded: 1 means the next request, and 2 the request after the next."""

    def request(self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        """Begin the span of a request with the trace context `context`."""
        return Span(context) if context else NO_SPAN

    def replayed(self, hit: ReplayedHit, context: str) -> None:
        """Record a hit of a request with the trace context `context`."""

    def failure(self, name: str, span: Span, *, age: float) -> Span:
        """Begin a span for a failed request that was not sampled at first.

        The request began `age` seconds ago, with the span `span`, which is not recorded.
        """
        return NO_SPAN

    def span(
        self,
        name: str,
        *,
        parent: str = "",
        kind: str = "internal",
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> Span:
        """Begin a child step of the step whose trace context is `parent`.

        If `parent` is empty, the child step is not recorded.
        """
        return Span(parent) if parent else NO_SPAN

    def records(self, parent: str) -> bool:
        """Return whether child steps of the context `parent` are recorded."""
        return False

    def statistics(self) -> SpanStatistics:
        """Return counts of spans since the start."""
        return SpanStatistics()

    def close(self) -> None:
        """Do nothing."""


def _samples_none(_context: str) -> bool:
    return False


def _no_gap() -> int:
    return sys.maxsize
