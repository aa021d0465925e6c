"""Encoding of spans: the messages that OpenTelemetry's encoder makes, whatever is in them."""

import pytest
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common import trace_encoder
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)
from opentelemetry.util.types import Attributes

from wire.otlp.encoding import SCOPE, SpanBatch, encode_message, encode_span, encode_spans

_RESOURCE, _SCOPE = Resource({"service.name": "x"}), InstrumentationScope("s", "1")


def context(number: int, *, is_remote: bool = False, state: str = "") -> SpanContext:
    trace_state = TraceState.from_header([state]) if state else None
    return SpanContext(number << 70 | number, number << 40, is_remote, TraceFlags(1), trace_state)


def span(
    attributes: Attributes = None,
    *,
    parent: SpanContext | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    status: Status | None = None,
    links: tuple[Link, ...] = (),
    events: tuple[Event, ...] = (),
    state: str = "",
    name: str = "a span",
    resource: Resource = _RESOURCE,
    scope: InstrumentationScope = _SCOPE,
) -> ReadableSpan:
    return ReadableSpan(
        name,
        context(7, state=state),
        parent,
        resource,
        attributes,
        events=events,
        links=links,
        kind=kind,
        status=status or Status(),
        start_time=1_700_000_000_000_000_000,
        end_time=1_700_000_000_000_000_123,
        instrumentation_scope=scope,
    )


@pytest.mark.parametrize(
    "odd",
    [
        span(),
        span(name="é" * 200),
        span(parent=context(3)),
        span(parent=context(3, is_remote=True)),
        span(state="a=1,b=2"),
        span(kind=SpanKind.SERVER, status=Status(StatusCode.ERROR, "code")),
        span(kind=SpanKind.CLIENT, status=Status(StatusCode.OK)),
        span({"a": True, "b": False, "c": 0, "d": -5, "e": 1.5, "f": 2**40, "g": 0.0, "h": ""}),
        span({"a": 1, "b": 1.0, "c": True, "d": "1", "long": "x" * 400}),
        span({"list": ["a", "b"]}),
        span(BoundedAttributes(1, {"a": 1, "b": 2})),
        span(links=(Link(context(4)), Link(context(5, is_remote=True)))),
        span(links=(Link(context(4), {"a": 1}),)),
        span(events=(Event("e", {"a": 1}, 5),)),
        span(resource=Resource({"service.name": "y"})),
    ],
)
def test_spans_are_encoded_as_the_sdk_does(odd: ReadableSpan) -> None:
    spans = [span({"first": 1}), odd, span({"first": 1}), odd]

    assert encode_message(spans) == trace_encoder.encode_spans(spans)


def test_one_span_is_encoded_as_the_sdk_does() -> None:
    assert encode_message([span()]) == trace_encoder.encode_spans([span()])


@pytest.mark.parametrize("others", [[], [span(scope=SCOPE)], [span(events=(Event("e", {}, 5),))]])
def test_spans_that_come_encoded_go_with_the_others(others: list[ReadableSpan]) -> None:
    early = [span({"n": n}, scope=SCOPE) for n in (1, 2)]
    batch = SpanBatch([*others, *[encode_span(each, _RESOURCE, SCOPE) for each in early]])
    batch.resource = _RESOURCE

    sent = encode_message(batch)

    expected = trace_encoder.encode_spans([*others, *early])
    assert (
        list(sent.resource_spans[-1].scope_spans[-1].spans)[-2:]
        == [*expected.resource_spans[0].scope_spans[-1].spans][-2:]
    )
    assert {each.resource.SerializeToString() for each in sent.resource_spans} == {
        expected.resource_spans[0].resource.SerializeToString()
    }
    assert _count(sent) == _count(expected) == len(batch)
    assert encode_spans(batch).SerializePartialToString() == encode_spans(batch)


def _count(request: ExportTraceServiceRequest) -> int:
    return sum(len(scope.spans) for each in request.resource_spans for scope in each.scope_spans)
