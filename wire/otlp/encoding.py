"""Encodes spans for OTLP as OpenTelemetry's encoder does, but four times as fast.

OpenTelemetry's encoder creates an object for every attribute and takes 17 µs per span. This is too
slow, because a request that the cache answers takes only 12 µs and has three spans. OpenTelemetry's
encoder is still used for spans with rare content, and for the fields that all spans of a batch
share.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext

SCOPE: Final = InstrumentationScope("sluicegate")
_IDS = struct.Struct(">2sQQ2sQ")
_PARENT = struct.Struct(">2sQ")
_TIMES = struct.Struct("<cQcQ")
_FLAGS = struct.Struct("<2sI")
_LINK_FLAGS = struct.Struct("<cI")
_DOUBLE = struct.Struct("<cd")
_HALF = (1 << 64) - 1
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
# The encoding of attributes is cached. Most values come from small sets, but request ids do not, so
# the cache is bounded.
_MOST_REMEMBERED = 4096
_LONGEST_REMEMBERED = 24
_KINDS = frozenset({str, bool, int, float})
_encoded: dict[tuple[str, type, Any], bytes] = {}


class RareSpan(Exception):
    """Reports that a span has rare content, which this module does not encode."""


class SpanBatch(list[Any]):  # `Any`, because exporters declare lists of spans only
    """Lists spans to export; some of them may already be encoded as bytes.

    Encoded spans have the resource `resource` and the scope `SCOPE`. One element may encode several
    spans. Then an empty element follows for each span after the first, so that the length of the
    list is the number of spans.
    """

    resource: Resource


class EncodedRequest(bytes):
    """An encoded `ExportTraceServiceRequest`."""

    def SerializePartialToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the encoded request, like a protobuf message."""
        return self


def encode_message(spans: Sequence[ReadableSpan | bytes]) -> ExportTraceServiceRequest:
    """Return the request that exports `spans`, for the gRPC exporter."""
    request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(encode_spans(spans))
    return request


def encode_spans(spans: Sequence[ReadableSpan | bytes]) -> EncodedRequest:
    """Return the request that exports `spans`, like OpenTelemetry's `encode_spans`."""
    objects = [span for span in spans if not isinstance(span, bytes)]
    if objects:
        resource, scope = objects[0].resource, objects[0].instrumentation_scope
    else:
        resource, scope = getattr(spans, "resource"), SCOPE  # noqa: B009 - it is a `SpanBatch`
    theirs = b""
    try:
        ours = [
            span if isinstance(span, bytes) else encode_span(span, resource, scope)
            for span in spans
        ]
    except RareSpan:
        # Concatenated protobuf messages are merged, so two encoded requests make one.
        theirs = trace_encoder.encode_spans(objects).SerializeToString()
        ours = [span for span in spans if isinstance(span, bytes)]
    if not ours:
        return EncodedRequest(theirs)
    resource_part, scope_part = _head(resource, scope)
    scope_spans = _field(b"\x12", scope_part + b"".join(ours))
    return EncodedRequest(theirs + _field(b"\x0a", resource_part + scope_spans))


def encode_span(
    span: ReadableSpan, resource: Resource, scope: InstrumentationScope | None
) -> bytes:
    """Return a span, encoded as a field of the protobuf message `ScopeSpans`.

    Raises:
        RareSpan: the span has another resource or scope, or rare content.
    """
    if span.resource is not resource or span.instrumentation_scope is not scope:
        raise RareSpan
    if span.events or span.dropped_attributes or span.dropped_links:
        raise RareSpan
    context, parent, status = span.context, span.parent, span.status
    if context is None or span.start_time is None or span.end_time is None:
        raise RareSpan
    high, low = context.trace_id >> 64, context.trace_id & _HALF
    parts = [_IDS.pack(b"\x0a\x10", high, low, b"\x12\x08", context.span_id)]
    if context.trace_state:
        parts.append(_field(b"\x1a", _state(context)))
    if parent is not None:
        parts.append(_PARENT.pack(b"\x22\x08", parent.span_id))
    parts += (
        _field(b"\x2a", span.name.encode()),
        b"\x30%c" % (span.kind.value + 1),
        _TIMES.pack(b"\x39", span.start_time, b"\x41", span.end_time),
    )
    parts += [_attribute(name, value) for name, value in (span.attributes or {}).items()]
    for link in span.links:
        if link.attributes:
            raise RareSpan
        parts.append(_field(b"\x6a", _link(link.context)))
    message = (status.description or "").encode()
    code = b"\x18%c" % status.status_code.value if status.status_code.value else b""
    parts.append(_field(b"\x7a", (_field(b"\x12", message) if message else b"") + code))
    is_remote = parent is not None and parent.is_remote
    parts.append(_FLAGS.pack(b"\x85\x01", _HAS_IS_REMOTE | _IS_REMOTE * is_remote))
    return _field(b"\x12", b"".join(parts))


@lru_cache(maxsize=16)
def _head(resource: Resource, scope: InstrumentationScope | None) -> tuple[bytes, bytes]:
    """Return the encoded fields of `ResourceSpans` and `ScopeSpans`, without spans."""
    empty = ReadableSpan(
        "",
        SpanContext(1, 1, is_remote=False),
        resource=resource,
        instrumentation_scope=scope,
        start_time=0,
        end_time=0,
    )
    (resource_spans,) = trace_encoder.encode_spans([empty]).resource_spans
    (scope_spans,) = resource_spans.scope_spans
    del scope_spans.spans[:]
    scope_part = scope_spans.SerializeToString()
    del resource_spans.scope_spans[:]
    return resource_spans.SerializeToString(), scope_part


def _link(context: SpanContext) -> bytes:
    high, low = context.trace_id >> 64, context.trace_id & _HALF
    ids = _IDS.pack(b"\x0a\x10", high, low, b"\x12\x08", context.span_id)
    return ids + _LINK_FLAGS.pack(b"\x35", _HAS_IS_REMOTE | _IS_REMOTE * context.is_remote)


def _state(context: SpanContext) -> bytes:
    return ",".join([f"{key}={value}" for key, value in context.trace_state.items()]).encode()


def _attribute(name: str, value: Any) -> bytes:
    key = name, type(value), value
    if type(value) not in _KINDS:
        raise RareSpan
    known = _encoded.get(key)
    if known is None:
        known = _field(b"\x4a", _field(b"\x0a", name.encode()) + _field(b"\x12", _value(value)))
        if not isinstance(value, str) or len(value) <= _LONGEST_REMEMBERED:
            if len(_encoded) >= _MOST_REMEMBERED:
                _encoded.clear()
            _encoded[key] = known
    return known


def _value(value: Any) -> bytes:
    """Return an encoded `AnyValue`.

    Zeros are encoded too, because the field's number tells the type.
    """
    if isinstance(value, str):
        return _field(b"\x0a", value.encode())
    if isinstance(value, bool):
        return b"\x10%c" % value
    if isinstance(value, int):
        return b"\x18" + _varint(value & _HALF)
    return _DOUBLE.pack(b"\x21", value)


def _field(tag: bytes, content: bytes) -> bytes:
    length = len(content)
    if length < 0x80:  # noqa: PLR2004 - one byte of a varint
        return b"%b%c%b" % (tag, length, content)
    return tag + _varint(length) + content


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - one byte of a varint
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
