"""Records spans of any step of the gateway, linked to backends' by W3C `traceparent`.

A parent is passed as the text of `traceparent`, not through context variables, so that work which
outlives its request (a detached computation, a probe) needs no special care.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Attributes = Mapping[str, str | int | float | bool]
_NONE: Final[Attributes] = {}
# OpenTelemetry waits 30 s for a collector that is down, which would delay the end of a process.
_CLOSE_WITHIN: Final = 2.0
_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
}


class NullSpan:
    """Stands for a span while tracing is off; passes an incoming `traceparent` on."""

    def __init__(self, traceparent: str = "") -> None:
        self.traceparent = traceparent
        """The parent's value, so that a caller's trace does not end at the gateway."""

    def set(self, name: str, value: str | float | bool) -> None:  # noqa: FBT001
        """Do nothing."""

    def fail(self, code: str) -> None:
        """Do nothing."""


class OtelSpan:
    """Times a step, by OpenTelemetry's SDK."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """The span as a W3C `traceparent` value, the parent of child spans."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def set(self, name: str, value: str | float | bool) -> None:  # noqa: FBT001
        """Set an attribute, which must not contain a caller's text."""
        self._span.set_attribute(name, value)

    def fail(self, code: str) -> None:
        """Mark the step as failed with the reason `code`."""
        self._span.set_attribute("error.type", code)
        self._span.set_status(trace.StatusCode.ERROR, code)


Span = NullSpan | OtelSpan


class NullTracer:
    """Stands for a tracer while tracing is off: records nothing, reads no clock."""

    _nothing = nullcontext(NullSpan())

    def span(
        self, name: str, *, parent: str = "", kind: str = "internal", attributes: Attributes = _NONE
    ) -> AbstractContextManager[NullSpan]:
        """Return a span that records nothing."""
        return nullcontext(NullSpan(parent)) if parent else self._nothing

    def close(self) -> None:
        """Do nothing."""


class OtelTracer:
    """Opens spans and sends them by OpenTelemetry's batch processor, which drops rather than wait.

    Nothing raises.
    """

    def __init__(
        self, exporter: SpanExporter, *, service: str, close_within: float = _CLOSE_WITHIN
    ) -> None:
        self._close_within = close_within
        resource = Resource.create({"service.name": service})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sluicegate")
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def span(
        self, name: str, *, parent: str = "", kind: str = "internal", attributes: Attributes = _NONE
    ) -> Iterator[OtelSpan]:
        """Record a span under `parent`; of a new trace if that is empty."""
        context = self._propagator.extract({"traceparent": parent})
        span = self._tracer.start_span(
            name, context=context, kind=_KINDS[kind], attributes=dict(attributes)
        )
        try:
            yield OtelSpan(span)
        except BaseException as error:  # any error ends the span
            span.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
        finally:
            span.end()

    def close(self) -> None:
        """Send the buffered spans, for at most `close_within` seconds."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(self._close_within)


Tracer = NullTracer | OtelTracer


def tracer_from(environ: Mapping[str, str], *, service: str) -> Tracer:
    """Return the tracer configured by the standard `OTEL_*` variables in `environ`.

    Off unless an OTLP endpoint or exporter is set: the SDK's default, a collector on this machine,
    would log errors on installations without one.
    """
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NullTracer()
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    if exporter == "none" or not (exporter or endpoint):
        return NullTracer()
    return OtelTracer(OTLPSpanExporter(), service=environ.get("OTEL_SERVICE_NAME", service))
