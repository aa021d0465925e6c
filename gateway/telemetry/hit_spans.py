"""Encodes the trace spans of cache hits in memory, by filling in a template.

The spans of equal hits differ only in span ids, times and the request id. A template is the
encoding of the spans, with placeholders for these values.
"""

import re
from collections.abc import Callable
from operator import itemgetter
from random import getrandbits
from struct import Struct
from typing import Final

import msgspec
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, TraceFlags
from typing_extensions import override

from sluicegate.gateway.telemetry.recorded_spans import OK, RecordedSpan, SpanSink
from sluicegate.gateway.telemetry.spans import MEMORY, Attributes
from sluicegate.gateway.telemetry.trace_context import SAMPLED
from sluicegate.gateway.telemetry.tracing import ReplayedHit
from sluicegate.wire.otlp.encoding import encode_fields

_FOUR_TIMES: Final = Struct("<QQQQ").pack
# These values stand for ids and times while a template is built. Their bytes occur nowhere else in
# a span.
_TRACE: Final = b"\xf0" * 16
_MARKS: Final = {
    name: bytes([0xF1 + number]) * 8
    for number, name in enumerate(
        (b"parent", b"root", b"lookup", b"admission", b"began", b"found", b"charged", b"ended")
    )
}
_ID: Final = len(_MARKS) + 1
"""The index of the request id among a template's values."""
_TIMES: Final = [
    int.from_bytes(_MARKS[name], "little") for name in (b"began", b"found", b"charged", b"ended")
]


def record_hit(span: RecordedSpan, hit: ReplayedHit) -> None:
    """Record the steps of a hit as children of the request's `span`, and end `span`."""
    began, found, charged, ended = hit.times
    span.record("cache lookup", began, found, MEMORY)
    span.record("admission", found, charged)
    span.set("http.response.status_code", 200)
    span.set("sluicegate.request_id", hit.request_id.decode())
    span.set("sluicegate.model", hit.model)
    span.set("sluicegate.revision", hit.revision)
    span.set("sluicegate.items", 1)
    span.end_at(ended)


class HitTemplate:
    """Encodes the spans of hits that are equal to `hit`.

    If `has_parent` is true, the hits have a remote parent span. Otherwise, they have no parent.
    `make` builds a span from the arguments of `SpanSink.add`. `is_usable` is false if the encoded
    spans do not contain the request id, for example because the environment limits attributes.
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
        self._format, values = _opened(encode_fields(sink.spans), hit.request_id)
        self.is_usable = _ID in values
        self._pick = itemgetter(*values) if self.is_usable else tuple
        self._nothing = [b""] * (len(sink.spans) - 1)

    def spans(self, hit: ReplayedHit, trace: bytes, parent: bytes) -> list[bytes]:
        """Return the encoded spans of a hit as a list with one element for each span.

        The first element has the bytes of all spans, and all other elements are empty. The length
        of the list tells `SpanQueue` the number of spans.
        """
        ids = getrandbits(192).to_bytes(24, "big")
        times = _FOUR_TIMES(*hit.times)
        values = (
            *(trace, parent, ids[:8], ids[8:16], ids[16:]),
            *(times[:8], times[8:16], times[16:24], times[24:], hit.request_id),
        )
        return [self._format % self._pick(values), *self._nothing]


class SpanList(SpanSink):
    """Collects spans that `make` builds.

    The first spans get placeholders as ids, one for each of `names`.
    """

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


def _opened(spans: bytes, request_id: bytes) -> tuple[bytes, list[int]]:
    """Return encoded spans as a `%` template, with placeholders for the marks and `request_id`.

    The second result has a number for each placeholder. 0 stands for the trace id, the next numbers
    stand for the values of `_MARKS`, and the last number stands for the request id.
    """
    marks = [_TRACE, *_MARKS.values(), request_id]
    parts = re.split(b"(%b)" % b"|".join(map(re.escape, marks)), spans)
    values = [marks.index(mark) for mark in parts[1::2]]
    return b"%b".join([part.replace(b"%", b"%%") for part in parts[::2]]), values
