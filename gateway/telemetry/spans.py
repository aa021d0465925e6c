"""Implements spans that are not recorded. They only pass a trace context on.

`recorded_spans` implements spans that are recorded. This module does not import OpenTelemetry,
because OpenTelemetry is needed only if tracing is on.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from sluicegate.gateway.telemetry.trace_context import unsampled

Attributes = Mapping[str, str | int | float | bool]
NO_ATTRIBUTES: Final[Attributes] = {}
MEMORY: Final[Attributes] = {"sluicegate.cache.tier": "memory"}
"""The attributes of a cache lookup in memory."""


class Span:
    """A step that is not recorded. It passes its parent's trace context on to child steps.

    If the span is used as a context manager, the step ends on exit.
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
        """The trace context for child steps."""
        return self._traceparent

    def child(self, name: str, attributes: Attributes = NO_ATTRIBUTES) -> "Span":
        """Begin a child step."""
        return self

    def record(
        self, name: str, started: int, ended: int, attributes: Attributes = NO_ATTRIBUTES
    ) -> None:
        """Record a child step that has ended. Times are in nanoseconds since 1970."""

    def set(self, name: str, value: str | float | bool) -> None:  # noqa: FBT001
        """Set an attribute. Its value must not contain a caller's text."""

    def fail(self, code: str) -> None:
        """Mark the step as failed with the error code `code`."""

    def end(self) -> None:
        """End the step. Ending it again has no effect."""


NO_SPAN: Final = Span()


class UnsampledSpan(Span):
    """Stands for a request that is not sampled.

    The flag `sampled` is not set in the trace context for child steps, so that backends do not
    record the request either. If the caller sent no trace context, a new trace begins.
    """

    def __init__(self, traceparent: str = "") -> None:
        super().__init__(traceparent)
        self.begins_trace = not traceparent

    @property
    @override
    def traceparent(self) -> str:
        if self._traceparent[53:55] not in ("00", "02"):
            self._traceparent = unsampled(self._traceparent)
        return self._traceparent
