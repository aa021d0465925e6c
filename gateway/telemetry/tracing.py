"""Begins and exports spans of any step of the gateway, linked to backends' by W3C trace context.

A parent is passed as the text of its context (see `trace_context`), not through context variables,
so that work which outlives its request (a detached computation, a probe) needs no special care.
"""

from collections.abc import Mapping
from random import getrandbits
from time import time_ns
from typing import Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags, TraceState
from typing_extensions import override

from backends.otlp import (
    SpanQueue,
    TracingProblem,
    TracingStatistics,
    open_provider,
    open_queue,
)
from backends.otlp_variables import is_tracing_wanted
from gateway.errors import ConfigurationError
from gateway.telemetry.propagation import ContextReader
from gateway.telemetry.sampling import HeadSampler
from gateway.telemetry.spans import (
    NO_ATTRIBUTES,
    NO_SPAN,
    OK,
    Attributes,
    RecordedSpan,
    Span,
    UnsampledSpan,
    below,
)
from gateway.telemetry.trace_context import LENGTH, SAMPLED, is_sampled

_MOST_ATTRIBUTES: Final = 16
_SCOPE: Final = InstrumentationScope("sluicegate")
# With the flag that the random part of the id is random.
_NEW_TRACE: Final = TraceFlags(SAMPLED | 2)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class Tracer:
    """Begins spans. This one records nothing and reads no clock: tracing is off."""

    def __init__(self, contexts: ContextReader | None = None) -> None:
        self.contexts = contexts or ContextReader()

    def request(self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        """Begin the span of a request that came with `context`."""
        return Span(context) if context else NO_SPAN

    def failure(self, name: str, context: str, *, age: float) -> Span:
        """Begin the span of a request, `age` seconds old, that failed without being sampled."""
        return NO_SPAN

    def span(
        self,
        name: str,
        *,
        parent: str = "",
        kind: str = "internal",
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> Span:
        """Begin a step under `parent`; without one it is not recorded."""
        return Span(parent) if parent else NO_SPAN

    def records(self, parent: str) -> bool:
        """Tell whether steps under `parent` are recorded."""
        return False

    def statistics(self) -> TracingStatistics:
        """Return counts since the start."""
        return TracingStatistics()

    def close(self) -> None:
        """Do nothing."""


class OtelTracer(Tracer):
    """Records spans for OpenTelemetry's exporters. Nothing raises, and nothing waits."""

    def __init__(
        self, queue: SpanQueue, provider: TracerProvider, contexts: ContextReader | None = None
    ) -> None:
        super().__init__(contexts)
        self.sampler = HeadSampler(provider.sampler)
        self._queue = queue
        self._provider = provider
        self._resource = provider.resource
        self._limits = _limits()

    @override
    def request(self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        if not self.sampler.samples(context):
            return UnsampledSpan(context)
        return self.sampled_request(name, context, attributes)

    def sampled_request(
        self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES, *, started: int = 0
    ) -> RecordedSpan:
        """Begin the span of a request that the sampler chose."""
        return self._begin(name, context, SpanKind.SERVER, attributes, started=started)

    @override
    def failure(self, name: str, context: str, *, age: float) -> Span:
        if self.sampler.is_off:
            return NO_SPAN
        started = time_ns() - int(age * 1e9)
        return self._begin(name, context, SpanKind.SERVER, {}, started=started)

    @override
    def span(
        self,
        name: str,
        *,
        parent: str = "",
        kind: str = "internal",
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> Span:
        if not self.records(parent):
            return super().span(name, parent=parent)
        return self._begin(name, parent, _KINDS[kind], attributes)

    @override
    def records(self, parent: str) -> bool:
        return parent != "" and is_sampled(parent)

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
        """See `SpanSink.add`."""
        started, ended = times
        self._queue.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes if self._limits is None else _bounded(attributes, self._limits),
                kind=kind,
                status=status,
                start_time=started,
                end_time=ended,
                instrumentation_scope=_SCOPE,
            )
        )

    @override
    def statistics(self) -> TracingStatistics:
        return self._queue.statistics()

    @override
    def close(self) -> None:
        """Send the queued spans, for at most a few seconds."""
        self._provider.shutdown()

    def _begin(
        self, name: str, parent: str, kind: SpanKind, attributes: Attributes, *, started: int = 0
    ) -> RecordedSpan:
        above = _parsed(parent, is_remote=kind is SpanKind.SERVER) if parent else None
        if above is None:
            trace_id = self.sampler.new_trace_id()
            context = SpanContext(trace_id, getrandbits(64) or 1, False, _NEW_TRACE)
        else:
            context = below(above)
        return RecordedSpan(
            self, name, context, above, kind=kind, attributes=attributes, started=started
        )


def tracer_from(environ: Mapping[str, str], *, service: str, instance: str = "") -> Tracer:
    """Return the tracer configured by the `OTEL_*` variables in `environ`, the process's own.

    Raises:
        ConfigurationError: they ask for what is not installed or impossible.
    """
    contexts = ContextReader(environ.get("OTEL_PROPAGATORS", ""))
    if not is_tracing_wanted(environ):
        return Tracer(contexts)
    attributes = {"service.name": service}
    if instance:
        attributes["service.instance.id"] = instance
    try:
        queue = open_queue(environ)
        return OtelTracer(queue, open_provider(queue, attributes), contexts)
    except TracingProblem as error:
        raise ConfigurationError(str(error)) from error


def _limits() -> SpanLimits | None:
    """Return the limits on attributes that the environment sets, `None` where it sets none."""
    limits = SpanLimits()
    # More attributes than are set here are no limit.
    is_unlimited = limits.max_span_attribute_length is None and (
        limits.max_span_attributes is None or limits.max_span_attributes >= _MOST_ATTRIBUTES
    )
    return None if is_unlimited else limits


def _bounded(attributes: Attributes, limits: SpanLimits) -> BoundedAttributes:
    return BoundedAttributes(
        limits.max_span_attributes,
        dict(attributes),
        max_value_len=limits.max_span_attribute_length,
    )


def _parsed(context: str, *, is_remote: bool) -> SpanContext:
    state = TraceState.from_header([context[LENGTH + 1 :]]) if len(context) > LENGTH else None
    return SpanContext(
        int(context[3:35], 16),
        int(context[36:52], 16),
        is_remote,
        TraceFlags(int(context[53:55], 16) | SAMPLED),
        state,
    )
