"""Export of spans: by the variables of OpenTelemetry, and dropped rather than waited for."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typing_extensions import override

from sluicegate.backends.settings import process_environment
from sluicegate.wire.otlp.spans import SpanQueue, open_provider, open_queue
from sluicegate.wire.otlp.variables import OTLP, TracingProblem, drop_unusable, is_tracing_wanted
from testing.waiting import wait_until
from tests.support.otlp_sink import HttpSink
from tests.support.tracing import BlockedExporter, GrpcSink, Sink

_ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


class Refusing(SpanExporter):
    """Does not export; raises what it is given."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._error is not None:
            raise self._error
        return SpanExportResult.FAILURE


def open_from(
    monkeypatch: pytest.MonkeyPatch, environ: Mapping[str, str]
) -> tuple[SpanQueue, TracerProvider]:
    """Return the queue and the provider of a process with this environment."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    queue = open_queue(environ)
    return queue, open_provider(queue, {"service.name": "ours"})


def exporters_of(queue: SpanQueue) -> list[Any]:
    queue.shutdown()
    return list(queue._exporters)


def record(queue: SpanQueue, count: int = 1) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    for number in range(count):
        provider.get_tracer("x").start_span(str(number)).end()


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({"OTEL_TRACES_EXPORTER": "none"}, False),
        (_ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (_ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (_ENDPOINT | {"OTEL_SDK_DISABLED": "1"}, True),
        (_ENDPOINT, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "zipkin, otlp"}, True),
        (_ENDPOINT | {"OTEL_TRACES_EXPORTER": "zipkin"}, False),
        (_ENDPOINT | {"OTEL_TRACES_EXPORTER": " "}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ],
)
def test_traces_are_sent_where_they_are_asked_for(environ: dict[str, str], wanted: bool) -> None:  # noqa: FBT001
    assert is_tracing_wanted(environ) is wanted


def test_several_exporters_may_be_named_and_unknown_ones_are_none() -> None:
    queue = open_queue({"OTEL_TRACES_EXPORTER": "otlp, console, zipkin"})

    assert [type(one) for one in exporters_of(queue)] == [OTLPSpanExporter, ConsoleSpanExporter]


@pytest.mark.parametrize("kind", [HttpSink, GrpcSink])
def test_spans_arrive_with_headers_and_resource_by_either_protocol(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    if kind is GrpcSink:
        pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    sink: Sink = kind()
    queue, _ = open_from(
        monkeypatch,
        sink.environment
        | {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=abc", "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"},
    )

    record(queue, 3)
    queue.shutdown()
    sink.stop()

    assert [span.name for span in sink.spans] == ["0", "1", "2"]
    assert sink.headers[0]["x-key"] == "abc"
    assert queue.counts()["exported"] == 3


def test_the_signals_own_variables_win(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = HttpSink()
    url = sink.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/own/path"
    environ = {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
    }
    queue, _ = open_from(monkeypatch, _ENDPOINT | environ)

    record(queue)
    queue.shutdown()
    sink.stop()

    assert [headers["path"] for headers in sink.headers] == ["/own/path"]


@pytest.mark.parametrize(
    ("environ", "name", "instance"),
    [
        ({}, "ours", None),
        ({"OTEL_SERVICE_NAME": "theirs"}, "theirs", None),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a,service.instance.id=b"}, "a", "b"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=a", "OTEL_SERVICE_NAME": "c"}, "c", None),
    ],
)
def test_the_environment_names_the_service(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], name: str, instance: str | None
) -> None:
    queue, provider = open_from(monkeypatch, _ENDPOINT | environ)
    queue.shutdown()

    assert provider.resource.attributes["service.name"] == name
    assert instance is None or provider.resource.attributes["service.instance.id"] == instance


def test_timeouts_are_in_milliseconds_and_the_shortest_counts() -> None:
    """The SDK's exporters read them as seconds; two of these would be minutes."""
    timeouts = [
        exporters_of(open_queue(_ENDPOINT | environ))[0]._client._timeout
        for environ in (
            {},
            {"OTEL_EXPORTER_OTLP_TIMEOUT": "1500"},
            {"OTEL_EXPORTER_OTLP_TIMEOUT": "1500", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "250"},
            {"OTEL_BSP_EXPORT_TIMEOUT": "2000"},
            {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
        )
    ]

    assert timeouts == [10.0, 1.5, 0.25, 2.0, 10.0]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize(
    ("name", "text", "warnings"),
    [
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "", 0),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "10s", 1),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "", 0),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", 1),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "none", 0),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "abc", 1),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "-1", 1),
        ("OTEL_TRACES_SAMPLER_ARG", " ", 0),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a secret", 1),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%0Asecret", 1),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%00secret", 1),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a secret, y-key=a€secret", 1),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20secret,y-key=%C3%A4 secret==", 0),
    ],
)
def test_what_is_empty_or_invalid_is_ignored_as_the_specification_says(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    protocol: str,
    name: str,
    text: str,
    warnings: int,
) -> None:
    if protocol == "grpc":
        pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    for variable, value in {**_ENDPOINT, f"{OTLP}PROTOCOL": protocol, name: text}.items():
        monkeypatch.setenv(variable, value)

    drop_unusable(process_environment())
    queue = open_queue(process_environment())
    open_provider(queue, {})
    queue.shutdown()

    assert len(caplog.records) == warnings
    assert "secret" not in caplog.text


def test_the_compression_of_traces_alone_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    sink = GrpcSink()
    environ = {f"{OTLP}COMPRESSION": "gzip", f"{OTLP}TRACES_COMPRESSION": "none"}
    queue, _ = open_from(monkeypatch, sink.environment | environ)

    record(queue)
    queue.shutdown()
    sink.stop()

    assert [span.name for span in sink.spans] == ["0"]


def test_the_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = HttpSink()
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", sink.environment["OTEL_EXPORTER_OTLP_ENDPOINT"])
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.invalid:4318"}
    queue, _ = open_from(monkeypatch, environ)

    record(queue)
    queue.shutdown()
    sink.stop()

    assert [each["path"] for each in sink.headers] == ["http://collector.invalid:4318/v1/traces"]


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)

    with pytest.raises(TracingProblem, match=r"PROTOCOL=grpc.*otlp-grpc\]"):
        open_queue(_ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})


def test_a_file_that_is_not_there_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environ = _ENDPOINT | {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere/ca.pem"}

    with pytest.raises(TracingProblem, match=r"OTEL_EXPORTER_OTLP_CERTIFICATE.*/nowhere/ca\.pem"):
        open_from(monkeypatch, environ)


def test_a_package_with_credentials_makes_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = _ENDPOINT | {"OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "not-installed"}

    with pytest.raises(TracingProblem, match="not-installed"):
        open_from(monkeypatch, environ)


def test_an_unknown_protocol_is_ignored_as_the_specification_says() -> None:
    queue = open_queue(_ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"})

    assert [type(one) for one in exporters_of(queue)] == [OTLPSpanExporter]


def test_spans_beyond_the_queue_are_dropped_and_counted() -> None:
    exporter = BlockedExporter()
    queue = SpanQueue([exporter], {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_SCHEDULE_DELAY": "1"})

    record(queue)
    assert exporter.is_asked.wait(60.0)
    record(queue, 10)  # 4 of them fit
    counts = queue.counts()
    exporter.answers.set()
    queue.shutdown()

    assert counts["dropped"] == 6
    assert queue.counts()["exported"] == 5


def test_batches_have_at_most_the_size_that_is_set() -> None:
    sizes: list[int] = []

    class Sizes(InMemorySpanExporter):
        @override
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            sizes.append(len(spans))
            return SpanExportResult.SUCCESS

    queue = SpanQueue([Sizes()], {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"})
    record(queue, 10)
    queue.shutdown()

    assert sum(sizes) == 10
    assert max(sizes) == 4


@pytest.mark.parametrize("error", [None, OSError("no way there")])
def test_spans_that_are_not_taken_are_counted(error: Exception | None) -> None:
    queue = SpanQueue([InMemorySpanExporter(), Refusing(error)], {})

    record(queue, 3)
    queue.shutdown()

    assert queue.counts()["failed"] == 3


def test_a_full_batch_does_not_wait_for_the_delay() -> None:
    exporter = InMemorySpanExporter()
    queue = SpanQueue([exporter], {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"})

    record(queue, 4)

    wait_until(lambda: len(exporter.get_finished_spans()) == 4, within=4, what="exported")
    queue.shutdown()


def test_a_collector_that_does_not_answer_holds_up_no_end() -> None:
    exporter = BlockedExporter()
    queue = SpanQueue([exporter], {}, close_within=0.05)
    record(queue)

    queue.shutdown()

    assert not exporter.has_ended.is_set()
    exporter.answers.set()
    assert exporter.has_ended.wait(60.0)
