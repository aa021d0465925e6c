"""Records spans in this process, and receives them over OTLP by HTTP and gRPC."""

import gzip
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from typing import Any, Protocol

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from typing_extensions import override

from backends.otlp import SpanQueue
from gateway.telemetry.otel_tracer import OtelTracer

_EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


class Recorded:
    """A tracer of the gateway, and the spans it has sent."""

    def __init__(self, sampler: Sampler = DEFAULT_ON) -> None:
        self._exporter = InMemorySpanExporter()
        queue = SpanQueue([self._exporter], {}, close_within=60.0)
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(queue)
        self.tracer = OtelTracer(queue, provider)

    def spans(self) -> list[ReadableSpan]:
        """Close the tracer and return what it sent, in the order of the ends."""
        self.tracer.close()
        return list(self._exporter.get_finished_spans())


class BlockedExporter(SpanExporter):
    """Sends to a collector that takes what it is sent and does not answer."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.is_asked = threading.Event()
        self.has_ended = threading.Event()

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.is_asked.set()
        self.answers.wait(60.0)
        return SpanExportResult.SUCCESS

    @override
    def shutdown(self) -> None:
        self.has_ended.set()


class Sink(Protocol):
    """A collector in this process: keeps the spans it is sent, and the headers of each export."""

    spans: list[Span]
    headers: list[Mapping[str, str]]

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process export to it."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class HttpSink(ThreadingHTTPServer):
    """A `Sink` of OTLP over HTTP; `status` is what it answers with."""

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
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_address[1]}"}

    def stop(self) -> None:
        self.answers.set()
        self.shutdown()
        self._thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
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
                sink.spans += _spans(body)
        self.send_response(sink.status)
        self.send_header("content-length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class GrpcSink:
    """A `Sink` of OTLP over gRPC."""

    def __init__(self) -> None:
        grpc: Any = import_module("grpc")
        self.spans: list[Span] = []
        self.headers: list[Mapping[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(2))
        handler = grpc.unary_unary_rpc_method_handler(self._export)
        _, service, method = _EXPORT.split("/")
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }

    def stop(self) -> None:
        self._server.stop(None).wait()

    def _export(self, body: bytes, context: Any) -> bytes:
        self.headers.append(dict(context.invocation_metadata()))
        self.spans += _spans(body)
        return bytes(ExportTraceServiceResponse().SerializeToString())


def _spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
