"""Traces calls down to model runs; costs nothing where tracing is off.

POST /v1/call        one per item: child of the span of its caller (`traceparent`)
├── tokenization     one per question to the tokenizer, the wait for its thread included
└── row              one per computed row, from the queue to its result
    ├── queue        until its batch began
    └── batch        in the trace of its first sampled row, linked to the other rows' spans
        └── model run
"""

from collections.abc import Mapping, Sequence
from time import time_ns
from types import TracebackType
from typing import Final, Self

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from backends.errors import StartProblem
from backends.otlp import (
    SpanQueue,
    TracingProblem,
    TracingStatistics,
    open_provider,
    open_queue,
)

Attributes = Mapping[str, str | int | float]
# The last digit of a `traceparent` whose flag `sampled` is not set.
_UNSAMPLED: Final = "02468ace"


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
            self.end(getattr(error, "code", type(error).__name__))

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


class SampledSpan(Span):
    """Records a span with OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self.span = span
        self.queued = time_ns()
        """When its wait in a queue began; 0 once that is over."""

    @override
    def child(self, name: str, attributes: Attributes) -> Span:
        context = trace.set_span_in_context(self.span)
        span = self._tracer.start_span(name, context, attributes=dict(attributes))
        return SampledSpan(self._tracer, span)

    def end_queue(self) -> None:
        """Record the wait in a queue that ends now, once."""
        if self.queued:
            context = trace.set_span_in_context(self.span)
            self._tracer.start_span("queue", context, start_time=self.queued).end()
            self.queued = 0

    @override
    def end(self, error: str | None = None) -> None:
        if error is not None:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end()


class OtelTracing(Tracing):
    """Traces through an OpenTelemetry provider, which sends its spans by `queue`."""

    records = True

    def __init__(self, provider: TracerProvider, queue: SpanQueue | None = None) -> None:
        self._provider = provider
        self._queue = queue
        self._tracer = provider.get_tracer("sluicegate.backend")
        self._propagator = TraceContextTextMapPropagator()
        self._follows_parent = isinstance(provider.sampler, ParentBased)

    @override
    def call(self, carrier: Mapping[str, str], attributes: Attributes) -> Span:
        parent = carrier.get("traceparent", "")
        if self._follows_parent and parent[-1:] and parent[-1] in _UNSAMPLED:
            return NO_SPAN  # as the SDK decides, at a twentieth of its cost
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            "POST /v1/call", context, kind=SpanKind.SERVER, attributes=dict(attributes)
        )
        return SampledSpan(self._tracer, span) if span.is_recording() else NO_SPAN

    @override
    def batch(self, rows: Sequence[Span], attributes: Attributes) -> Span:
        sampled = [row for row in rows if isinstance(row, SampledSpan)]
        if not sampled:
            return NO_SPAN
        for row in sampled:
            row.end_queue()
        first, *others = [row.span for row in sampled]
        span = self._tracer.start_span(
            "batch",
            trace.set_span_in_context(first),
            attributes=dict(attributes),
            links=[trace.Link(other.get_span_context()) for other in others],
        )
        return SampledSpan(self._tracer, span)

    @override
    def statistics(self) -> TracingStatistics:
        return TracingStatistics() if self._queue is None else self._queue.statistics()

    @override
    def close(self) -> None:
        self._provider.shutdown()


def otlp_tracing(environ: Mapping[str, str], region: str, backend_id: str) -> Tracing:
    """Return tracing as the `OTEL_*` variables in `environ`, the process's own, say.

    Raises:
        StartProblem: they ask for what is not installed or impossible.
    """
    attributes = {
        "service.name": "sluicegate-backend",
        "service.instance.id": backend_id,
        "cloud.region": region,
    }
    try:
        queue = open_queue(environ)
        return OtelTracing(open_provider(queue, attributes), queue)
    except TracingProblem as error:
        raise StartProblem(str(error)) from error
