"""Has the spans that are not recorded: they pass a trace context on, and read no clock.

Those that are recorded are in `recorded_spans`. This module needs nothing of OpenTelemetry, which
is imported only where tracing is on.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from gateway.telemetry.trace_context import unsampled

Attributes = Mapping[str, str | int | float | bool]
NO_ATTRIBUTES: Final[Attributes] = {}
MEMORY: Final[Attributes] = {"sluicegate.cache.tier": "memory"}
"""Of the look-up in memory."""


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
    """Is the root of what is not recorded, so that backends do not record it either.

    Without a trace context of the caller it begins a trace.
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
