"""Implements the spans of traced requests."""

from random import getrandbits
from time import time_ns
from types import TracebackType
from typing import Final, Protocol

from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode
from typing_extensions import override

from sluicegate.gateway.telemetry.spans import NO_ATTRIBUTES, Attributes, Span

OK: Final = Status()


class SpanSink(Protocol):
    """Receives ended spans for their export."""

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
        """Queue a span that began and ended at `times`. Never waits and never raises."""
        ...


class RecordedSpan(Span):
    """Records a step that began at `started`, in nanoseconds since 1970. 0 means now."""

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
            # This is the code of a `GatewayError`, or the code or cause of a `CallFailed`. The
            # error's message is not used, because the message could contain a caller's text.
            code = getattr(error, "code", "") or getattr(error, "cause", "")
            self.fail(str(code) or type(error).__name__)  # `str`: an enumeration is encoded slowly
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
        self.end_at(time_ns())

    def end_at(self, ended: int) -> None:
        """End the step at `ended`, in nanoseconds since 1970."""
        if not self._has_ended:
            self._has_ended = True
            times = self._started, ended
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
    """Return the context of a new child span of `parent`."""
    return SpanContext(
        parent.trace_id,
        getrandbits(64) or 1,
        False,
        parent.trace_flags,
        parent.trace_state,
    )
