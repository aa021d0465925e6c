"""Encoded spans of hits are exported beside those that OpenTelemetry encodes."""

import pytest
from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanContext, TraceFlags

from sluicegate.wire.otlp.encoding import (
    SCOPE,
    SpanBatch,
    encode_fields,
    encode_message,
    encode_spans,
)

_RESOURCE = Resource({"service.name": "x"})


def span(number: int, *, events: tuple[Event, ...] = (), long: str = "") -> ReadableSpan:
    return ReadableSpan(
        "a span",
        SpanContext(number << 70, number << 40, is_remote=False, trace_flags=TraceFlags(1)),
        resource=_RESOURCE,
        attributes={"n": number, "long": long},
        events=events,
        start_time=1_700_000_000_000_000_000,
        end_time=1_700_000_000_000_000_123,
        instrumentation_scope=SCOPE,
    )


@pytest.mark.parametrize("others", [[], [span(1)], [span(1, events=(Event("e", {}, 5),))]])
@pytest.mark.parametrize("long", ["", "x" * 20_000])
def test_spans_that_come_encoded_go_with_the_others(others: list[ReadableSpan], long: str) -> None:
    early = [span(2, long=long), span(3)]
    batch = SpanBatch([*others, encode_fields(early), b""])
    batch.resource = _RESOURCE

    sent = encode_message(batch).resource_spans

    expected = [*(trace_encoder.encode_spans(others).resource_spans if others else ())]
    assert list(sent) == expected + list(trace_encoder.encode_spans(early).resource_spans)
    assert encode_spans(batch).SerializePartialToString() == encode_spans(batch)
