"""Declares the spans of calls down to model runs, and those of tracing that is off.

Those that are recorded are in `otel_tracing`, which is imported only where tracing is on.

POST /v1/call        one per item: child of the span of its caller (`traceparent`)
├── tokenization     one per question to the tokenizer, the wait for its thread included
└── row              one per computed row, from the queue to its result
    ├── queue        until its batch began
    └── batch        in the trace of its first sampled row, linked to the other rows' spans
        └── model run
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

from backends.otlp_statistics import TracingStatistics

Attributes = Mapping[str, str | int | float]


class Span:
    """Records work in a trace; any thread may end it. Attributes never hold input.

    This one records nothing: the trace is not sampled, or tracing is off.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.end()
        else:
            self.end(getattr(error, "code", "") or type(error).__name__)

    def child(self, name: str, attributes: Attributes) -> "Span":
        """Start a span below this one."""
        return self

    def end(self, error: str | None = None) -> None:
        """End it, as failed when `error` is given."""


class Tracing:
    """Starts the spans that have no parent in this process; this one starts none: it is off."""

    records = False
    """Whether any span may be kept: where none is, a hot path need not ask for one."""

    def call(self, carrier: Mapping[str, str], attributes: Attributes) -> Span:
        """Start the server span of a call that came with these trace headers."""
        return NO_SPAN

    def batch(self, rows: Sequence[Span], attributes: Attributes) -> Span:
        """Start the span of a batch below its first sampled row, linked to the others."""
        return NO_SPAN

    def statistics(self) -> TracingStatistics:
        """Return what became of the spans since the start."""
        return TracingStatistics()

    def close(self) -> None:
        """Send what is left, as far as that takes no longer than a few seconds."""


NO_SPAN: Final = Span()
NO_TRACING: Final = Tracing()
