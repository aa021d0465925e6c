"""Records spans in this process, and receives them over OTLP by gRPC."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Sampler
from typing_extensions import override

from sluicegate.gateway.telemetry.otel_tracer import OtelTracer
from sluicegate.wire.otlp.spans import SpanQueue
from tests.support.otlp_sink import spans_of

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
        self.spans += spans_of(body)
        return bytes(ExportTraceServiceResponse().SerializeToString())
