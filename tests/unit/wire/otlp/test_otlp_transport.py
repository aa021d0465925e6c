"""Exports over plain HTTP: over one connection, once, and with the credentials of operators."""

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from sluicegate.wire.otlp.spans import open_exporter
from testing.ports import free_port

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_SUCCESS = SpanExportResult.SUCCESS
Step = Callable[[socket.socket], object]


class ScriptedCollector:
    """Serves one connection by each of `steps`, and counts the connections."""

    def __init__(self, *steps: Step) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.address}/v1/traces"
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, args=(steps,), daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            with contextlib.suppress(OSError):  # the test has ended
                connection, _ = self._listener.accept()
                self.connections += 1
                with connection:
                    step(connection)


def read_export(connection: socket.socket) -> str:
    """Read a request, and return its head."""
    with connection.makefile("rb") as file:
        lines = list(iter(file.readline, b"\r\n"))
        head = b"".join(lines).decode().lower()
        (length,) = (line for line in head.splitlines() if line.startswith("content-length"))
        file.read(int(length.partition(":")[2]))
    return head


def answering(*answers: bytes) -> Step:
    """Return a step that gives these answers, and then closes the connection."""

    def step(connection: socket.socket) -> None:
        for answer in answers:
            read_export(connection)
            connection.sendall(answer)

    return step


def open_at(monkeypatch: pytest.MonkeyPatch, url: str, *, timeout: int = 20_000) -> Any:
    """Return the exporter of a process that exports to `url` within `timeout` milliseconds."""
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_TIMEOUT": str(timeout),
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return open_exporter(environ)


def spans(name: str = "spans") -> list[ReadableSpan]:
    context = SpanContext(1, 1, is_remote=False, trace_flags=TraceFlags(1))
    return [ReadableSpan(name, context, start_time=1, end_time=2)]


def test_exports_go_over_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
        b"4\r\ntext\r\n0\r\n\r\n"
    )
    text = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ntext"

    with ScriptedCollector(answering(_OK, chunks, text, _OK), answering(_OK)) as collector:
        exporter = open_at(monkeypatch, collector.url)
        results = [exporter.export(spans()) for _ in range(4)]
        exporter.shutdown()

    assert results == [_SUCCESS] * 4
    assert collector.connections == 1


def test_a_connection_that_the_collector_closed_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedCollector(answering(_OK), answering(_OK)) as collector:
        exporter = open_at(monkeypatch, collector.url)
        results = [exporter.export(spans()) for _ in range(2)]

    assert results == [_SUCCESS] * 2


def test_what_an_idle_connection_was_told_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers and proxies say 408 as they close a connection that nobody uses."""
    may_close, has_closed = threading.Event(), threading.Event()

    def close_when_idle(connection: socket.socket) -> None:
        answering(_OK)(connection)
        may_close.wait(60.0)
        connection.sendall(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        connection.close()
        has_closed.set()

    with ScriptedCollector(close_when_idle, answering(_OK)) as collector:
        exporter = open_at(monkeypatch, collector.url)
        before = exporter.export(spans())
        may_close.set()
        has_closed.wait(60.0)

        after = exporter.export(spans())

    assert (before, after) == (_SUCCESS, _SUCCESS)
    assert collector.connections == 2


@pytest.mark.parametrize(
    "half",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nhalf",
    ],
)
def test_the_status_of_half_an_answer_counts(monkeypatch: pytest.MonkeyPatch, half: bytes) -> None:
    """The collector has the spans: sent once more they would be there twice."""
    with ScriptedCollector(answering(half), answering(_OK)) as collector:
        result = open_at(monkeypatch, collector.url).export(spans())

    assert result == _SUCCESS
    assert collector.connections == 1


def test_of_a_large_answer_a_part_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    size, sent = 32 * 1024 * 1024, []

    def answer_at_length(connection: socket.socket) -> None:
        read_export(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        connection.sendall(bytes(size))  # fails, because the exporter closes the connection
        sent.append(size)

    with ScriptedCollector(answer_at_length, answering(_OK)) as collector:
        exporter = open_at(monkeypatch, collector.url)
        results = [exporter.export(spans()) for _ in range(2)]

    assert results == [_SUCCESS] * 2
    assert not sent


def test_a_collector_may_answer_before_it_has_read_everything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")

    with ScriptedCollector(refuse) as collector:
        result = open_at(monkeypatch, collector.url).export(spans("x" * 32 * 1024 * 1024))

    assert result == SpanExportResult.FAILURE
    assert "413" in caplog.text


def test_no_error_has_the_query_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(random, "uniform", lambda *_: 0.0)  # no time between two tries
    ended = threading.Event()

    with ScriptedCollector(lambda _: ended.wait(60.0)) as collector:
        for address in (f"127.0.0.1:{free_port()}", collector.address):
            url = f"http://{address}/token-1?key=token-2"
            assert open_at(monkeypatch, url, timeout=200).export(spans()) != _SUCCESS
        ended.set()

    assert "Transient error" in caplog.text
    assert "timed out" in caplog.text
    assert "token" not in caplog.text


@pytest.mark.parametrize("source", ["url", "netrc"])
def test_credentials_of_an_endpoint_are_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    heads: list[str] = []

    def keep(connection: socket.socket) -> None:
        heads.append(read_export(connection))
        connection.sendall(_OK)

    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n", encoding="utf-8")
    netrc.chmod(0o600)
    if source == "netrc":
        monkeypatch.setenv("NETRC", str(netrc))

    with ScriptedCollector(keep) as collector:
        user = "me:secret@" if source == "url" else ""
        exporter = open_at(monkeypatch, f"http://{user}{collector.address}/v1/traces")
        result = exporter.export(spans())
        exporter.shutdown()

    assert result == _SUCCESS
    assert "authorization: basic " in heads[0]


class LaterExporter(trace_exporter.OTLPSpanExporter):
    """The SDK's exporter as it could be in a later version: without an internal argument."""

    def __init__(self, timeout: float, compression: Any) -> None:
        super().__init__(timeout=timeout, compression=compression)


@pytest.mark.parametrize("lacks", ["argument", "class"])
def test_a_later_sdk_exports_by_its_own_means(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    if lacks == "argument":
        monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", LaterExporter)
    else:
        monkeypatch.delitem(sys.modules, "sluicegate.wire.otlp.transport", raising=False)
        monkeypatch.setitem(sys.modules, "opentelemetry.exporter.http.transport._urllib3", None)

    with ScriptedCollector(answering(_OK)) as collector:
        exporter = open_at(monkeypatch, collector.url)
        result = exporter.export(spans())
        exporter.shutdown()

    assert result == _SUCCESS
