"""Declares the interface of tracing, and implements tracing that is off.

`otel_tracing` records spans. It is imported only if tracing is on. The spans are:

POST /v1/call        one per item, a child of the caller's span (`traceparent`)
├── tokenization     one per call of the tokenizer, including the wait for its thread
└── row              one per computed row, from submission to result
    ├── queue        until the row's batch begins
    └── batch        in the trace of its first sampled row, linked to the other rows' spans
        └── model run
"""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

Attributes = Mapping[str, str | int | float]


class Span:
    """Represents a span of a trace. Any thread may end it. Attributes must not contain input.

    This base class records nothing. It is used if the trace is not sampled or tracing is off.
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
        """Start a child span."""
        return self

    def end(self, error: str | None = None) -> None:
        """End the span, as failed if there is an `error`."""


class Tracing:
    """Starts the spans that have no parent in this process. This base class records nothing."""

    records = False
    """Whether spans are recorded at all; if not, hot paths skip them."""

    def call(self, carrier: Mapping[str, str], attributes: Attributes) -> Span:
        """Start the server span of a call that came with these trace headers."""
        return NO_SPAN

    def batch(self, rows: Sequence[Span], attributes: Attributes) -> Span:
        """Start the span of a batch below its first sampled row, and link it to the other rows."""
        return NO_SPAN

    def counts(self) -> Mapping[str, int]:
        """Return how many spans were exported, failed or dropped since the start."""
        return dict.fromkeys(("exported", "failed", "dropped"), 0)

    def close(self) -> None:
        """Export the remaining spans, for a few seconds at most."""


NO_SPAN: Final = Span()
NO_TRACING: Final = Tracing()
