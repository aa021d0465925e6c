"""Begins spans of any step of the gateway; with tracing off, these only pass a context on.

A parent is passed as the text of its context (see `trace_context`), not through context variables,
so that work which outlives its request (a detached computation, a probe) needs no special care.
"""

import sys
from collections.abc import Callable, Sequence

import msgspec

from backends.otlp_statistics import TracingStatistics
from gateway.telemetry.propagation import ContextReader
from gateway.telemetry.spans import NO_ATTRIBUTES, NO_SPAN, Attributes, Span

_ID = b"x-request-id: "


class ReplayedHit(msgspec.Struct, frozen=True):
    """A memory hit that the fast path replayed.

    `name` and `attributes` are those of its request's span. `times` are when it began, was found,
    was charged, and ended, in ns of the wall clock.
    """

    name: str
    attributes: Attributes
    model: str
    revision: str
    answer: bytes
    times: Sequence[int]

    @property
    def request_id(self) -> bytes:
        """The id that the head of the answer has: it is read where there is time for it."""
        start = self.answer.index(_ID) + len(_ID)
        return self.answer[start : self.answer.index(b"\r", start)]


class Tracer:
    """Begins spans. This one records nothing and reads no clock: tracing is off."""

    is_on = False

    def __init__(self, contexts: ContextReader | None = None) -> None:
        self.contexts = contexts or ContextReader()
        self.samples: Callable[[str], bool] = _samples_none
        """Tells whether a request that came with a trace context is recorded."""
        self.gap: Callable[[], int] = _no_gap
        """Returns the number of the next request without a context that is recorded."""

    def request(self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        """Begin the span of a request that came with `context`."""
        return Span(context) if context else NO_SPAN

    def replayed(self, hit: ReplayedHit, context: str) -> None:
        """Record a hit that came with `context`."""

    def failure(self, name: str, span: Span, *, age: float) -> Span:
        """Begin the span of a request, `age` seconds old, that failed without being sampled.

        `span` is the one that it had, which recorded nothing.
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
        """Begin a step under `parent`; without one it is not recorded."""
        return Span(parent) if parent else NO_SPAN

    def records(self, parent: str) -> bool:
        """Tell whether steps under `parent` are recorded."""
        return False

    def statistics(self) -> TracingStatistics:
        """Return counts since the start."""
        return TracingStatistics()

    def close(self) -> None:
        """Do nothing."""


def _samples_none(_context: str) -> bool:
    return False


def _no_gap() -> int:
    return sys.maxsize
