"""Tests that one trace joins all steps of a request, from the gateway to the model run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from testing.system import System
from testing.waiting import wait_until
from tests.support.otlp_sink import HttpSink

pytestmark = pytest.mark.e2e
_STEPS = {
    "POST /v1/classify",
    "admission",
    "cache lookup",
    "coalescing",
    "dispatch",
    "claim",
    "POST /v1/call",
    "tokenization",
    "row",
    "queue",
    "batch",
    "model run",
}


@pytest.fixture
def sink() -> Iterator[HttpSink]:
    running = HttpSink()
    yield running
    running.stop()


@pytest.fixture
def system(light_models: Path, tmp_path: Path, sink: HttpSink) -> Iterator[System]:
    environment = sink.environment | {"OTEL_BSP_SCHEDULE_DELAY": "100"}
    with System(tmp_path / "data", models=light_models, environment=environment) as running:
        yield running


def test_one_trace_joins_all_steps_of_a_miss(system: System, sink: HttpSink) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    text = "a secret that must not be in a trace"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "tracestate": "a=1,b=2"}

    def joined() -> list[Span]:
        return [span for span in sink.spans if span.trace_id.hex() == trace]

    with system.client() as client:
        response = client.post(
            "/v1/classify", json={"model": "sentiment", "input": text}, headers=headers
        )
    assert response.status_code == 200
    wait_until(
        lambda: {span.name for span in joined()} >= _STEPS,
        within=60,
        what=f"all steps in one trace; there are {sorted({span.name for span in joined()})}",
    )

    by_id = {span.span_id: span for span in joined()}
    for span in joined():
        assert span.parent_span_id in by_id or span.parent_span_id.hex() == "00f067aa0ba902b7"
        assert span.trace_state == "a=1,b=2"
    assert text not in str(sink.spans)
