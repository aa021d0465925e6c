"""Spans of replayed hits that are encoded from a template: those that the SDK's objects become."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from typing_extensions import override

from sluicegate.gateway.telemetry.otel_tracer import OtelTracer
from sluicegate.gateway.telemetry.tracing import ReplayedHit
from sluicegate.wire.otlp.encoding import SpanBatch, encode_message
from sluicegate.wire.otlp.spans import SpanQueue
from tests.support.tracing import BlockedExporter

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_BEGAN = 1_700_000_000_000_000_000
_HIT = ReplayedHit(
    name="POST /v1/classify",
    attributes={"http.request.method": "POST", "http.route": "/v1/classify"},
    model="100 %s sure",
    revision="975160ee2d61",
    answer=b"HTTP/1.1 200 OK\r\nx-request-id: req_0123456789abcdef0000000007\r\n\r\n{}",
    times=(_BEGAN, _BEGAN + 10, _BEGAN + 25, _BEGAN + 31),
)


def recorded(context: str, *hits: ReplayedHit, takes_encoded: bool) -> tuple[list[Span], list[Any]]:
    """Return the spans of `hits` as a collector has them, and as they were queued."""
    exporter = InMemorySpanExporter()
    queue = SpanQueue([exporter], {}, close_within=60.0, takes_encoded=takes_encoded)
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.5)), shutdown_on_exit=False)
    provider.add_span_processor(queue)
    queue.resource = provider.resource
    tracer = OtelTracer(queue, provider)
    for hit in hits:
        tracer.replayed(hit, context)
    tracer.close()
    queued = list(exporter.get_finished_spans())
    batch = SpanBatch(queued)
    batch.resource = provider.resource
    (resource,) = encode_message(batch).resource_spans
    return list(resource.scope_spans[0].spans), queued


def without_ids(spans: list[Span]) -> list[Span]:
    """Return spans without what is drawn by chance."""
    names = {span.span_id: span.name.encode() for span in spans}
    for span in spans:
        span.parent_span_id = names.get(span.parent_span_id, span.parent_span_id)
        span.span_id = names[span.span_id]
        if span.trace_id.hex() not in _PARENT:
            span.trace_id = b""
    return spans


@pytest.mark.parametrize("context", ["", _PARENT])
def test_an_encoded_hit_is_what_its_objects_are(context: str) -> None:
    answer = _HIT.answer.replace(b"07", b"08")
    other = msgspec.structs.replace(_HIT, answer=answer, times=(1, 2, 3, 4))

    ours, queued = recorded(context, _HIT, other, takes_encoded=True)
    theirs, objects = recorded(context, _HIT, other, takes_encoded=False)

    assert {type(each) for each in queued} == {bytes}
    assert bytes not in {type(each) for each in objects}
    assert len({span.span_id for span in ours}) == 6
    assert {len(span.trace_id) for span in ours} == {16}
    for encoded, each in zip((ours[:3], ours[3:]), (theirs[:3], theirs[3:]), strict=True):
        assert len({span.trace_id for span in encoded}) == 1
        assert without_ids(encoded) == without_ids(each)


def test_a_new_trace_has_an_id_that_other_samplers_take() -> None:
    spans, _ = recorded("", *[_HIT] * 20, takes_encoded=True)

    assert all(int.from_bytes(span.trace_id[8:], "big") < 1 << 63 for span in spans)


def test_hits_of_two_revisions_are_encoded_by_templates_of_their_own() -> None:
    other = msgspec.structs.replace(_HIT, revision="0efe1cba2171")

    spans, _ = recorded(_PARENT, _HIT, other, _HIT, takes_encoded=True)

    values = {each.key: each.value for span in spans[5:6] for each in span.attributes}
    assert values["sluicegate.revision"].string_value == "0efe1cba2171"


def test_a_hit_with_a_tracestate_keeps_it() -> None:
    spans, _ = recorded(f"{_PARENT} a=1", _HIT, takes_encoded=True)

    assert [span.trace_state for span in spans] == ["a=1"] * 3


@pytest.mark.parametrize(
    ("name", "limit", "attributes"),
    [
        ("VALUE_LENGTH", "3", {"POS", "/v1", "req", "100", "975"}),
        ("COUNT", "2", {"975160ee2d61"}),
    ],
)
def test_limits_of_attributes_hold(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: str, attributes: set[str]
) -> None:
    monkeypatch.setenv(f"OTEL_SPAN_ATTRIBUTE_{name}_LIMIT", limit)

    spans, _ = recorded(_PARENT, _HIT, takes_encoded=True)

    root = spans[-1]
    texts = {each.value.string_value for each in root.attributes} - {""}
    assert texts == attributes


@pytest.mark.parametrize(
    ("environ", "exported", "dropped"),
    [
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}, [3, 3], 0),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "5"}, [3], 3),
    ],
)
def test_all_spans_of_a_hit_are_sent_together_or_dropped_and_counted(
    environ: dict[str, str], exported: list[int], dropped: int
) -> None:
    sizes: list[int] = []

    class Sizes(InMemorySpanExporter):
        @override
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            sizes.append(len(spans))
            return SpanExportResult.SUCCESS

    blocked = BlockedExporter()
    queue = SpanQueue([blocked, Sizes()], {"OTEL_BSP_SCHEDULE_DELAY": "1"} | environ)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    tracer = OtelTracer(queue, provider)
    tracer.request("first", "").end()
    assert blocked.is_asked.wait(60.0)
    tracer.replayed(_HIT, "")
    tracer.replayed(_HIT, "")
    blocked.answers.set()
    tracer.close()

    assert sizes == [1, *exported]
    assert tracer.statistics().exported == 1 + sum(exported)
    assert tracer.statistics().dropped == dropped
