"""Tests that one trace joins gateway, cache look-up, dispatch, backend, batch and run."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from typing_extensions import override

from loadtests.harness.system import System
from loadtests.harness.waiting import wait_until

pytestmark = pytest.mark.e2e


class Sink(ThreadingHTTPServer):
    """An OTLP collector in this process: keeps the spans it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        request = ExportTraceServiceRequest.FromString(body)
        sink = self.server
        assert isinstance(sink, Sink)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                sink.spans.extend(scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    running = Sink()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def system(light_models: Path, tmp_path: Path, sink: Sink) -> Iterator[System]:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": sink.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with System(tmp_path / "data", models=light_models, environment=environment) as running:
        yield running


def test_one_trace_joins_all_steps_of_a_request(system: System, sink: Sink) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    text = "a secret that must not be in a trace"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    steps = {
        "POST /v1/classify",
        "cache lookup",
        "dispatch",
        "POST /v1/call",
        "batch",
        "model run",
    }

    def joined() -> list[Span]:
        return [span for span in sink.spans if span.trace_id.hex() == trace]

    with system.client() as client:
        response = client.post(
            "/v1/classify", json={"model": "sentiment", "input": text}, headers=headers
        )
    assert response.status_code == 200
    wait_until(
        lambda: steps <= {span.name for span in joined()},
        within=60,
        what=f"all steps in one trace; there are {sorted({span.name for span in joined()})}",
    )

    by_id = {span.span_id: span for span in joined()}
    for span in joined():
        assert span.parent_span_id in by_id or span.parent_span_id.hex() == "00f067aa0ba902b7"
    assert text not in str(sink.spans)
