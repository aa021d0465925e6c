"""Has the spans of a request: those that are recorded, and those that only pass a context on.

What is not sampled reads no clock.
"""

from collections.abc import Mapping
from random import getrandbits
from time import time_ns
from types import TracebackType
from typing import Final, Protocol, Self

from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from typing_extensions import override

from gateway.telemetry.trace_context import unsampled

Attributes = Mapping[str, str | int | float | bool]
NO_ATTRIBUTES: Final[Attributes] = {}
OK: Final = Status()


class Span:
    """Stands for a step that is not recorded, and passes its caller's trace context on.

    A context manager that ends it.
    """

    is_recorded = False

    def __init__(self, traceparent: str = "") -> None:
        self._traceparent = traceparent

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Do nothing."""

    @property
    def traceparent(self) -> str:
        """The trace context of steps below this one."""
        return self._traceparent

    def child(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> "Span":
        """Begin a step below this one."""
        return self

    def record(
        self, name: str, started: int, ended: int, attributes: Attributes = NO_ATTRIBUTES
    ) -> None:
        """Record a step below this one that has ended; times are in ns of the wall clock."""

    def set(self, name: str, value: str | float | bool) -> None:  # noqa: FBT001
        """Set an attribute, which must not contain a caller's text."""

    def fail(self, code: str) -> None:
        """Mark the step as failed with the reason `code`."""

    def end(self) -> None:
        """End the step; does nothing the second time."""


NO_SPAN: Final = Span()


class UnsampledSpan(Span):
    """Is the root of what is not recorded, so that backends do not record it either."""

    @property
    @override
    def traceparent(self) -> str:
        if self._traceparent[53:55] not in ("00", "02"):
            self._traceparent = unsampled(self._traceparent)
        return self._traceparent


class SpanSink(Protocol):
    """Takes ended spans."""

    def add(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
        status: Status = OK,
    ) -> None:
        """Queue a span, of a start and an end; never waits and never raises."""
        ...


class RecordedSpan(Span):
    """Times a step, which began at `started` (ns of the wall clock), by default now."""

    is_recorded = True

    def __init__(
        self,
        sink: SpanSink,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = NO_ATTRIBUTES,
        started: int = 0,
    ) -> None:
        self._name = name
        self._context = context
        self._parent = parent
        self._kind = kind
        self._started = started or time_ns()
        self._sink = sink
        self._attributes = dict(attributes)
        self._status = OK
        self._has_ended = False

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            # The code of a `GatewayError`. A message might hold a caller's text.
            self.fail(getattr(error, "code", type(error).__name__))
        self.end()

    @property
    @override
    def traceparent(self) -> str:
        trace_id, span_id, _, flags, state, _ = self._context
        text = f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"
        return f"{text} {state.to_header()}" if state else text

    @override
    def child(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        context = self._context
        return RecordedSpan(self._sink, name, below(context), context, attributes=attributes)

    @override
    def record(
        self, name: str, started: int, ended: int, attributes: Attributes = NO_ATTRIBUTES
    ) -> None:
        context = self._context
        self._sink.add(name, below(context), context, (started, ended), attributes)

    @override
    def set(self, name: str, value: str | float | bool) -> None:
        self._attributes[name] = value

    @override
    def fail(self, code: str) -> None:
        self._attributes["error.type"] = code
        self._status = Status(StatusCode.ERROR, code)

    @override
    def end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            times = self._started, time_ns()
            self._sink.add(
                self._name,
                self._context,
                self._parent,
                times,
                self._attributes,
                self._kind,
                self._status,
            )


def below(parent: SpanContext) -> SpanContext:
    """Return the context of a new span below `parent`."""
    return SpanContext(
        parent.trace_id,
        getrandbits(64) or 1,
        False,
        parent.trace_flags,
        parent.trace_state,
    )
