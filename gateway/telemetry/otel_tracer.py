"""Records spans and exports them with OpenTelemetry's exporters.

W3C trace context links the gateway's spans to the spans of backends.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from random import getrandbits
from time import time_ns
from typing import Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags, TraceState
from typing_extensions import override

from sluicegate.gateway.telemetry.hit_spans import HitTemplate, SpanList, record_hit
from sluicegate.gateway.telemetry.propagation import ContextReader
from sluicegate.gateway.telemetry.recorded_spans import OK, RecordedSpan, SpanSink, below
from sluicegate.gateway.telemetry.sampling import HeadSampler
from sluicegate.gateway.telemetry.spans import (
    NO_ATTRIBUTES,
    NO_SPAN,
    Attributes,
    Span,
    UnsampledSpan,
)
from sluicegate.gateway.telemetry.trace_context import LENGTH, SAMPLED, is_sampled
from sluicegate.gateway.telemetry.tracing import ReplayedHit, SpanStatistics, Tracer
from sluicegate.wire.otlp.encoding import SCOPE
from sluicegate.wire.otlp.spans import SpanQueue, open_provider, open_queue

_MAX_ATTRIBUTES: Final = 16
_MAX_TEMPLATES: Final = 4096
# The second flag says that the trace id is random; see W3C Trace Context level 2.
_NEW_TRACE: Final = TraceFlags(SAMPLED | 2)
_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}


class OtelTracer(Tracer):
    """Records spans for OpenTelemetry's exporters. Its methods never raise and never wait."""

    is_on = True

    def __init__(
        self, queue: SpanQueue, provider: TracerProvider, contexts: ContextReader | None = None
    ) -> None:
        super().__init__(contexts)
        self.sampler = HeadSampler(provider.sampler)
        self._queue = queue
        self._provider = provider
        self._resource = provider.resource
        self._limits = _limits()
        self._templates: dict[tuple[str, str, str, bool], HitTemplate] = {}
        self.samples = self.sampler.samples
        self.gap = self.sampler.gap

    @override
    def request(self, name: str, context: str, attributes: Attributes = NO_ATTRIBUTES) -> Span:
        if not self.sampler.samples(context):
            return UnsampledSpan(context)
        return self._begin(name, context, SpanKind.SERVER, attributes)

    @override
    def replayed(self, hit: ReplayedHit, context: str) -> None:
        # A hit has three spans.
        self._queue.add((None, None, partial(self._hit_spans, hit, context)))

    def _hit_spans(self, hit: ReplayedHit, context: str) -> Sequence[ReadableSpan | bytes]:
        # Templates do not support `tracestate`, because it is rare and would be in every span.
        if self._queue.takes_encoded and len(context) <= LENGTH:
            kind = hit.name, hit.model, hit.revision, context != ""
            template = self._templates.get(kind)
            if template is None:
                template = self._add_template(kind, hit)
            if template.is_usable:
                return template.spans(hit, *self._ids(context))
        made = SpanList(self._make)
        root = self._begin(hit.name, context, SpanKind.SERVER, hit.attributes, hit.times[0], made)
        record_hit(root, hit)
        return made.spans

    @override
    def failure(self, name: str, span: Span, *, age: float) -> Span:
        if self.sampler.is_off:
            return NO_SPAN
        started, context = time_ns() - int(age * 1e9), span.traceparent
        if not (isinstance(span, UnsampledSpan) and span.begins_trace):
            return self._begin(name, context, SpanKind.SERVER, {}, started)
        # The span keeps its ids, because backends may have received these ids. The span is the root
        # of its trace.
        own = _parsed(context, is_remote=False)
        return RecordedSpan(self, name, own, None, kind=SpanKind.SERVER, started=started)

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
        self._queue.add([self._make(name, context, parent, times, attributes, kind, status)])

    @override
    def statistics(self) -> SpanStatistics:
        return SpanStatistics(**self._queue.counts())

    @override
    def close(self) -> None:
        """Send the queued spans, and give up after a few seconds."""
        self._provider.shutdown()

    def _make(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[int, int],
        attributes: Attributes,
        kind: SpanKind,
        status: Status,
    ) -> ReadableSpan:
        started, ended = times
        return ReadableSpan(
            name,
            context,
            parent,
            self._resource,
            attributes if self._limits is None else _bounded(attributes, self._limits),
            kind=kind,
            status=status,
            start_time=started,
            end_time=ended,
            instrumentation_scope=SCOPE,
        )

    def _add_template(self, kind: tuple[str, str, str, bool], hit: ReplayedHit) -> HitTemplate:
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = HitTemplate(hit, has_parent=kind[3], make=self._make)
        self._templates[kind] = template
        return template

    def _ids(self, context: str) -> tuple[bytes, bytes]:
        """Return the ids of the trace and of the parent span.

        If `context` is empty, begin a new trace.
        """
        if context:
            return bytes.fromhex(context[3:35]), bytes.fromhex(context[36:52])
        return self.sampler.new_trace_id().to_bytes(16, "big"), b""

    def _begin(
        self,
        name: str,
        parent: str,
        kind: SpanKind,
        attributes: Attributes,
        started: int = 0,
        sink: SpanSink | None = None,
    ) -> RecordedSpan:
        above = _parsed(parent, is_remote=kind is SpanKind.SERVER) if parent else None
        if above is None:
            trace_id = self.sampler.new_trace_id()
            context = SpanContext(trace_id, getrandbits(64) or 1, False, _NEW_TRACE)
        else:
            context = below(above)
        return RecordedSpan(
            sink or self, name, context, above, kind=kind, attributes=attributes, started=started
        )


def open_tracer(
    environ: Mapping[str, str], attributes: Mapping[str, str], contexts: ContextReader
) -> OtelTracer:
    """Return a tracer that `environ` configures, for a service with `attributes`.

    Raises:
        TracingProblem: the configuration is invalid, or a package is not installed.
    """
    queue = open_queue(environ)
    return OtelTracer(queue, open_provider(queue, attributes), contexts)


def _limits() -> SpanLimits | None:
    """Return the environment's limits on attributes of spans, or `None` if there are none."""
    limits = SpanLimits()
    # A limit has no effect if the gateway's spans never have that many attributes.
    is_unlimited = limits.max_span_attribute_length is None and (
        limits.max_span_attributes is None or limits.max_span_attributes >= _MAX_ATTRIBUTES
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
