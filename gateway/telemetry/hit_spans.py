"""Encodes the spans of replayed memory hits, which differ in a few values only.

A template is what the encoder makes of the spans of one hit, open where these values stand. So a
hit takes a quarter of the time that its spans would take as objects.
"""

from collections.abc import Callable
from random import getrandbits
from typing import Final

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags
from typing_extensions import override

from backends.otlp_encoding import RareSpan, encode_span
from gateway.telemetry.recorded_spans import OK, RecordedSpan, SpanSink
from gateway.telemetry.spans import MEMORY, Attributes
from gateway.telemetry.trace_context import SAMPLED
from gateway.telemetry.tracing import ReplayedHit

# What stands for ids and times until a template is made; nothing else has such bytes.
_TRACE: Final = b"\xf0" * 16
_MARKS: Final = {
    name: bytes([0xF1 + number]) * 8
    for number, name in enumerate(
        (b"parent", b"root", b"lookup", b"admission", b"began", b"found", b"charged", b"ended")
    )
}
_TIMES: Final = [
    int.from_bytes(_MARKS[name], "little") for name in (b"began", b"found", b"charged", b"ended")
]


def record_hit(span: RecordedSpan, hit: ReplayedHit) -> None:
    """Record the steps of a hit below `span`, the span of its request, and end that."""
    began, found, charged, ended = hit.times
    span.record("cache lookup", began, found, MEMORY)
    span.record("admission", found, charged)
    span.set("http.response.status_code", 200)
    span.set("sluicegate.request_id", hit.request_id.decode())
    span.set("sluicegate.model", hit.model)
    span.set("sluicegate.items", 1)
    span.end_at(ended)


class HitTemplate:
    """Makes the encoded spans of hits like `hit`, with a remote parent or without.

    `make` makes a span as `SpanSink.add` does. `is_usable` is false where the environment limits
    attributes so that they are not always the same.
    """

    def __init__(
        self, hit: ReplayedHit, *, has_parent: bool, make: Callable[..., ReadableSpan]
    ) -> None:
        sink = SpanList(make, b"lookup", b"admission")
        parent = _context(b"parent", is_remote=True) if has_parent else None
        root = RecordedSpan(
            sink,
            hit.name,
            _context(b"root"),
            parent,
            kind=SpanKind.SERVER,
            attributes=hit.attributes,
            started=_TIMES[0],
        )
        record_hit(root, msgspec.structs.replace(hit, times=_TIMES))
        try:
            encoded = [encode_span(s, s.resource, s.instrumentation_scope) for s in sink.spans]
        except RareSpan:
            encoded = []
        self._spans = [_opened(span, hit.request_id) for span in encoded]
        self.is_usable = any(b"%(id)b" in span for span in self._spans)

    def spans(self, hit: ReplayedHit, trace: bytes, parent: bytes) -> list[bytes]:
        """Return the encoded spans of a hit."""
        began, found, charged, ended = hit.times
        ids = getrandbits(192).to_bytes(24, "big")
        values = {
            b"trace": trace,
            b"parent": parent,
            b"root": ids[:8],
            b"lookup": ids[8:16],
            b"admission": ids[16:],
            b"began": began.to_bytes(8, "little"),
            b"found": found.to_bytes(8, "little"),
            b"charged": charged.to_bytes(8, "little"),
            b"ended": ended.to_bytes(8, "little"),
            b"id": hit.request_id,
        }
        return [span % values for span in self._spans]


class SpanList(SpanSink):
    """Keeps the spans that `make` makes; the ids of the first are the marks `names`."""

    def __init__(self, make: Callable[..., ReadableSpan], *names: bytes) -> None:
        self._make = make
        self._names = list(names)
        self.spans: list[ReadableSpan] = []

    @override
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
        if self._names:
            context = _context(self._names.pop(0))
        self.spans.append(self._make(name, context, parent, times, attributes, kind, status))


def _context(name: bytes, *, is_remote: bool = False) -> SpanContext:
    trace, span = int.from_bytes(_TRACE, "big"), int.from_bytes(_MARKS[name], "big")
    return SpanContext(trace, span, is_remote, TraceFlags(SAMPLED))


def _opened(span: bytes, request_id: bytes) -> bytes:
    """Return an encoded span as a format, open at the marks and at `request_id`."""
    span = span.replace(b"%", b"%%").replace(_TRACE, b"%(trace)b")
    for name, mark in _MARKS.items():
        span = span.replace(mark, b"%%(%b)b" % name)
    return span.replace(request_id, b"%(id)b")
