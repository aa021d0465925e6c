"""Traces calls down to model runs; costs nothing where tracing is off.

POST /v1/call        one per item: child of the span of its caller (`traceparent`)
└── row              one per computed row, from the queue to its result
└── batch        in the trace of its first sampled row, linked to the other rows' spans
└── model run
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

Attributes = Mapping[str, str | int | float]
# A collector that is away must not hold up the end of a process: OpenTelemetry waits for 30 s.
_CLOSE_WITHIN: Final = 2.0


class Span:
    """Records work in a trace; any thread may end it. Attributes never hold input.

    This one records nothing: the trace is not sampled, or tracing is off.
    """

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

    def close(self) -> None:
        """Send what is left, as far as that takes no longer than a few seconds."""


NO_SPAN: Final = Span()
NO_TRACING: Final = Tracing()


class SampledSpan(Span):
    """Records a span with OpenTelemetry."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self.span = span

    @override
    def child(self, name: str, attributes: Attributes) -> Span:
        context = trace.set_span_in_context(self.span)
        span = self._tracer.start_span(name, context, attributes=dict(attributes))
        return SampledSpan(self._tracer, span)

    @override
    def end(self, error: str | None = None) -> None:
        if error is not None:
            self.span.set_status(Status(StatusCode.ERROR, error))
        self.span.end()


class OtelTracing(Tracing):
    """Traces through an OpenTelemetry provider."""

    records = True

    def __init__(self, provider: TracerProvider, *, close_within: float = _CLOSE_WITHIN) -> None:
        self._provider = provider
        self._close_within = close_within
        self._tracer = provider.get_tracer("sluicegate.backend")
        self._propagator = TraceContextTextMapPropagator()

    @override
    def call(self, carrier: Mapping[str, str], attributes: Attributes) -> Span:
        context = self._propagator.extract(carrier)
        span = self._tracer.start_span(
            "POST /v1/call", context, kind=SpanKind.SERVER, attributes=dict(attributes)
        )
        return SampledSpan(self._tracer, span) if span.is_recording() else NO_SPAN

    @override
    def batch(self, rows: Sequence[Span], attributes: Attributes) -> Span:
        sampled = [row.span for row in rows if isinstance(row, SampledSpan)]
        if not sampled:
            return NO_SPAN
        first, *others = sampled
        span = self._tracer.start_span(
            "batch",
            trace.set_span_in_context(first),
            attributes=dict(attributes),
            links=[trace.Link(other.get_span_context()) for other in others],
        )
        return SampledSpan(self._tracer, span)

    @override
    def close(self) -> None:
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(self._close_within)


def otlp_tracing(region: str, backend_id: str) -> Tracing:
    """Return tracing that sends to the collector the standard `OTEL_*` variables name."""
    resource = Resource.create(
        {
            "service.name": "sluicegate-backend",
            "service.instance.id": backend_id,
            "cloud.region": region,
        }
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTracing(provider)
