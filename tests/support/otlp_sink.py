"""Receives spans and metrics over OTLP by HTTP, and keeps them."""

import gzip
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from typing_extensions import override


class HttpSink(ThreadingHTTPServer):
    """Serves OTLP over HTTP as a collector does; `status` is the status of its answers."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.spans: list[Span] = []
        self.metrics: list[ExportMetricsServiceRequest] = []
        self.headers: list[Mapping[str, str]] = []
        self.answers = threading.Event()
        self.answers.set()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process export to it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_address[1]}"}

    def stop(self) -> None:
        """End it."""
        self.answers.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Keep the spans or metrics of a request."""
        sink = self.server
        assert isinstance(sink, HttpSink)
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers["content-encoding"] == "gzip":
            body = gzip.decompress(body)
        sink.answers.wait(60.0)
        if sink.status == 200:
            sink.headers.append({"path": self.path} | dict(self.headers))
            if self.path.endswith("/v1/metrics"):
                sink.metrics.append(ExportMetricsServiceRequest.FromString(body))
            else:
                sink.spans += spans_of(body)
        self.send_response(sink.status)
        self.send_header("content-length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def spans_of(body: bytes) -> list[Span]:
    """Return the spans of the body of an export."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
