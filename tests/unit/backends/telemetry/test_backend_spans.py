"""Spans of a backend: one trace from the caller to the model run, and silence when off."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sluicegate.backends.telemetry.otel_tracing import OtelTracing, otlp_tracing
from sluicegate.backends.telemetry.spans import NO_SPAN, NO_TRACING
from sluicegate.wire.protocol import Task
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import until
from tests.support.backend_calls import running_backend
from tests.support.executors import PacedExecutor
from tests.support.gate import Gate
from tests.support.otlp_sink import HttpSink
from tests.support.tracing import GrpcSink

pytestmark = pytest.mark.anyio
TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHER = "1bf7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[OtelTracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    made = OtelTracing(provider)
    yield made
    made.close()


def traceparent(trace: str, *, sampled: bool = True) -> str:
    return f"00-{trace}-{PARENT}-{'01' if sampled else '00'}"


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


def trace_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


async def test_a_trace_goes_from_the_call_over_row_and_batch_to_the_run(
    tmp_path: Path, tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    gate = Gate()
    gate.open()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor, tracing=tracing) as backend:
        await backend.ask("mood", Task.CLASSIFY, ["good film"], traceparent=traceparent(TRACE))

    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"POST /v1/call", "tokenization", "row", "queue", "batch", "model run"}
    assert {trace_of(span) for span in spans.values()} == {TRACE}
    assert parent_of(spans["POST /v1/call"]) == int(PARENT, 16)
    assert parent_of(spans["row"]) == id_of(spans["POST /v1/call"])
    assert parent_of(spans["tokenization"]) == id_of(spans["POST /v1/call"])
    assert parent_of(spans["queue"]) == id_of(spans["row"])
    assert parent_of(spans["batch"]) == id_of(spans["row"])
    assert parent_of(spans["model run"]) == id_of(spans["batch"])


async def test_a_batch_links_to_the_rows_of_other_traces(
    tmp_path: Path, tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    gate = Gate()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor, tracing=tracing) as backend:
        first = asyncio.create_task(backend.ask("mood", Task.CLASSIFY, ["good"]))
        await until(lambda: gate.arrived == 1)
        exporter.clear()
        calls = [
            asyncio.create_task(
                backend.ask("mood", Task.CLASSIFY, [text], traceparent=traceparent(trace))
            )
            for text, trace in (("bad", TRACE), ("film", OTHER))
        ]
        await until(lambda: backend.engine.report().queued_rows == 2)
        gate.open()
        await asyncio.gather(first, *calls)

    spans = exporter.get_finished_spans()
    (batch,) = [
        s for s in spans if s.name == "batch" and s.attributes and s.attributes["rows"] == 2
    ]
    (link,) = batch.links
    rows = {trace_of(span): span for span in spans if span.name == "row"}
    assert {trace_of(batch), f"{link.context.trace_id:032x}"} == {TRACE, OTHER}
    assert link.context.span_id in {id_of(span) for span in rows.values()}


async def test_a_call_that_is_not_sampled_leaves_no_span(
    tmp_path: Path, tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    gate = Gate()
    gate.open()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor, tracing=tracing) as backend:
        unsampled = traceparent(TRACE, sampled=False)
        await backend.ask("mood", Task.CLASSIFY, ["good film"], traceparent=unsampled)

    assert exporter.get_finished_spans() == ()


async def test_no_span_holds_input(
    tmp_path: Path, tracing: OtelTracing, exporter: InMemorySpanExporter
) -> None:
    gate = Gate()
    gate.open()
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(write_repository(tmp_path), executor, tracing=tracing) as backend:
        await backend.ask("mood", Task.CLASSIFY, ["secretword", "secretword " * 99])

    assert exporter.get_finished_spans()
    assert "secretword" not in "".join(span.to_json() for span in exporter.get_finished_spans())


@pytest.mark.parametrize(
    "parent",
    [
        "nonsense0",
        f"00-{'0' * 32}-{PARENT}-00",
        f"cc-{TRACE}-{PARENT}-01-more0",
        traceparent(TRACE, sampled=False),
        traceparent(TRACE),
    ],
)
def test_a_call_is_recorded_where_the_sdk_would_record_it(
    tracing: OtelTracing, exporter: InMemorySpanExporter, parent: str
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    context = TraceContextTextMapPropagator().extract({"traceparent": parent})
    theirs = provider.get_tracer("theirs").start_span("x", context)

    tracing.call({"traceparent": parent}, {}).end()

    assert bool(exporter.get_finished_spans()) is theirs.is_recording()


def test_an_exporter_that_is_unknown_leaves_tracing_off() -> None:
    assert otlp_tracing({"OTEL_TRACES_EXPORTER": "zipkin"}, "eu", "eu-0") is NO_TRACING


def test_tracing_that_is_off_makes_no_objects() -> None:
    span = NO_TRACING.call({}, {})

    assert span is NO_SPAN
    assert span.child("row", {}) is NO_SPAN
    assert NO_TRACING.batch([span], {}) is NO_SPAN


@pytest.mark.parametrize("kind", [HttpSink, GrpcSink])
async def test_a_trace_arrives_whole_by_either_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[HttpSink] | type[GrpcSink]
) -> None:
    if kind is GrpcSink:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    sink, gate = kind(), Gate()
    gate.open()
    for name, value in sink.environment.items():
        monkeypatch.setenv(name, value)
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    tracing = otlp_tracing(sink.environment, "eu", "eu-0")
    async with running_backend(write_repository(tmp_path), executor, tracing=tracing) as backend:
        await backend.ask("mood", Task.CLASSIFY, ["good film"], traceparent=traceparent(TRACE))
    tracing.close()
    sink.stop()

    assert {span.name for span in sink.spans} >= {"POST /v1/call", "queue", "batch", "model run"}
    assert {span.trace_id.hex() for span in sink.spans} == {TRACE}
    assert tracing.counts()["exported"] == len(sink.spans)
