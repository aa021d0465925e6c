"""Records the spans of calls, rows and model runs with OpenTelemetry."""

import re
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.telemetry.spans import NO_SPAN, NO_TRACING, Attributes, Span, Tracing
from sluicegate.wire.otlp.spans import SpanQueue, open_provider, open_queue
from sluicegate.wire.otlp.variables import TracingProblem, exporter_names

# Matches a `traceparent` of version 00 whose `sampled` flag is not set.
_UNSAMPLED: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f][02468ace]")


class SampledSpan(Span):
    """Records a span with OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self.span = span
        self.queued = time_ns()
        """When the wait in the queue began (ns); 0 once it is recorded."""

    @override
    def child(self, name: str, attributes: Attributes) -> Span:
        context = trace.set_span_in_context(self.span)
        span = self._tracer.start_span(name, context, attributes=dict(attributes))
        return SampledSpan(self._tracer, span)

    def end_queue(self) -> None:
        """Record the wait in the queue as a span that ends now; later calls do nothing."""
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
    """Traces with an OpenTelemetry provider; `queue` exports the spans."""

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
        if self._follows_parent and _UNSAMPLED.fullmatch(parent):
            return NO_SPAN  # the SDK would decide the same, at ten times the cost
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
    def counts(self) -> Mapping[str, int]:
        return super().counts() if self._queue is None else self._queue.counts()

    @override
    def close(self) -> None:
        self._provider.shutdown()


def otlp_tracing(environ: Mapping[str, str], region: str, backend_id: str) -> Tracing:
    """Return the tracing that the `OTEL_*` variables in `environ` configure.

    Without a known exporter, tracing is off.

    Raises:
        StartProblem: a variable is invalid, or needs a package that is not installed.
    """
    attributes = {
        "service.name": "sluicegate-backend",
        "service.instance.id": backend_id,
        "cloud.region": region,
    }
    if not exporter_names(environ):
        return NO_TRACING
    try:
        queue = open_queue(environ)
        return OtelTracing(open_provider(queue, attributes), queue)
    except TracingProblem as error:
        raise StartProblem(str(error)) from error
