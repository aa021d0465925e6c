"""Spans: off by default, passed on when off, and under their parent when on."""

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from typing_extensions import override

from gateway.telemetry.tracing import NullTracer, OtelTracer, tracer_from

_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


class Recorded:
    """A tracer, and the spans it has sent."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = OtelTracer(self._exporter, service="test", close_within=60.0)

    def spans(self) -> list[ReadableSpan]:
        """Close the tracer and return what it sent, in the order of the ends."""
        self.tracer.close()
        return list(self._exporter.get_finished_spans())


class Silent(SpanExporter):
    """Sends to a collector that takes what it is sent and does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.has_ended = threading.Event()

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.answers.wait(60.0)
        return SpanExportResult.SUCCESS

    @override
    def shutdown(self) -> None:
        self.has_ended.set()


def test_a_collector_that_does_not_answer_holds_nobody_up() -> None:
    exporter = Silent()
    tracer = OtelTracer(exporter, service="test", close_within=0.05)
    with tracer.span("x"):
        pass

    tracer.close()

    assert not exporter.has_ended.is_set()
    exporter.answers.set()
    assert exporter.has_ended.wait(60.0)


@pytest.mark.parametrize("parent", ["", _PARENT])
def test_a_tracer_that_is_off_passes_the_callers_trace_on(parent: str) -> None:
    tracer = NullTracer()

    with tracer.span("x", parent=parent) as span:
        span.set("a", 1)
        span.fail("code")

        assert span.traceparent == parent
    tracer.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_TRACES_EXPORTER": "none"},
        _ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
        _ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        _ENDPOINT | {"OTEL_SDK_DISABLED": "TRUE"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
def test_tracing_is_off_unless_asked_for(environ: dict[str, str]) -> None:
    assert isinstance(tracer_from(environ, service="x"), NullTracer)


@pytest.mark.parametrize(
    "environ",
    [
        _ENDPOINT,
        _ENDPOINT | {"OTEL_SDK_DISABLED": "false"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"},
        {"OTEL_TRACES_EXPORTER": "otlp"},
    ],
)
def test_an_endpoint_or_an_exporter_turns_tracing_on(environ: dict[str, str]) -> None:
    tracer = tracer_from(environ, service="x")
    tracer.close()

    assert isinstance(tracer, OtelTracer)


def test_a_span_is_under_its_parent_and_names_itself() -> None:
    recorded = Recorded()

    with recorded.tracer.span("outer", parent=_PARENT, kind="server") as outer:
        name = outer.traceparent
        with recorded.tracer.span("inner", parent=name, attributes={"items": 3}) as inner:
            inner.set("hits", 1)

    second, first = recorded.spans()
    assert first.parent is not None
    assert second.parent is not None
    assert name.split("-")[1] == _PARENT.split("-")[1]
    assert f"{first.parent.span_id:016x}" == _PARENT.split("-")[2]
    assert f"{second.parent.span_id:016x}" == name.split("-")[2]
    assert (first.kind, second.kind) == (SpanKind.SERVER, SpanKind.INTERNAL)
    assert dict(second.attributes or {}) == {"items": 3, "hits": 1}


@pytest.mark.parametrize("parent", ["", "nonsense", "00-0-0-01", "\xff"])
def test_a_parent_that_is_none_begins_a_new_trace(parent: str) -> None:
    recorded = Recorded()

    with recorded.tracer.span("x", parent=parent):
        pass

    (span,) = recorded.spans()
    assert span.parent is None


def test_a_parent_that_is_not_sampled_is_not_recorded_but_passed_on() -> None:
    recorded = Recorded()

    with recorded.tracer.span("x", parent=_PARENT[:-2] + "00") as span:
        assert span.traceparent.split("-")[1] == _PARENT.split("-")[1]
        assert span.traceparent.endswith("-00")

    assert recorded.spans() == []


def test_a_failed_span_says_why_by_its_code() -> None:
    recorded = Recorded()

    with recorded.tracer.span("x") as span:
        span.fail("overloaded")

    (found,) = recorded.spans()
    assert found.status.status_code is StatusCode.ERROR
    assert (found.attributes or {})["error.type"] == "overloaded"


def test_an_exception_ends_the_span_and_is_named_without_its_message() -> None:
    recorded = Recorded()

    with pytest.raises(ValueError, match="secret"), recorded.tracer.span("x"):
        raise ValueError("a secret text")

    (found,) = recorded.spans()
    assert found.status.description == "ValueError"
    assert "secret" not in found.to_json()
