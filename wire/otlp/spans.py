"""Exports spans as the `OTEL_*` variables say."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final
from urllib.request import getproxies

from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from requests.utils import get_netrc_auth
from typing_extensions import override

from sluicegate.wire.installing import install_command
from sluicegate.wire.otlp.encoding import SpanBatch, encode_message, encode_spans
from sluicegate.wire.otlp.variables import (
    COMPRESSIONS,
    OTLP,
    TracingProblem,
    exporter_names,
    number,
    otlp_variable,
)

_log = logging.getLogger(__name__)
# Seconds to export remaining spans. OpenTelemetry's default of 30 s would delay the end of a
# process while the collector is down.
CLOSE_WITHIN: Final = 2.0
_PACKAGES = {"http/protobuf": "http", "grpc": "grpc"}
# Variables with this suffix name a package that provides a session with credentials to the SDK.
_CREDENTIALS = "_CREDENTIAL_PROVIDER"
_KINDS = {"TRACES": ("trace", "OTLPSpanExporter"), "METRICS": ("metric", "OTLPMetricExporter")}


MakeSpans = Callable[[], Sequence[ReadableSpan | bytes]]
"""Returns spans. If `takes_encoded` is true for the queue, they may be encoded as fields of
`ScopeSpans`, for the queue's `resource` and `SCOPE`."""


class SpanQueue(SpanProcessor):
    """Queues ended spans for a thread that exports them. Any thread may add spans.

    If the queue is full, spans are dropped and counted, so that no request waits for a collector.
    The SDK's own processor is slower, because it makes a system call for each span, and logs each
    dropped span.
    """

    def __init__(
        self,
        exporters: Sequence[SpanExporter],
        environ: Mapping[str, str],
        *,
        close_within: float = CLOSE_WITHIN,
        takes_encoded: bool = False,
    ) -> None:
        self._exporters = exporters
        self.takes_encoded = takes_encoded
        """Whether `MakeSpans` may return encoded spans: all exporters use OTLP."""
        self.resource = Resource.get_empty()
        self._room = number(environ, "OTEL_BSP_MAX_QUEUE_SIZE", default=2048)
        batch = number(environ, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE", default=512)
        self._batch = min(batch, self._room)
        self._delay = number(environ, "OTEL_BSP_SCHEDULE_DELAY", default=5000) / 1000
        self._close_within = close_within
        self._spans: deque[ReadableSpan | MakeSpans | None] = deque()
        self._lock = threading.Lock()
        self._exported = self._failed = self._dropped = 0
        self._is_closing = False
        self._wakes = threading.Event()
        self._thread = threading.Thread(target=self._export_batches, name="spans", daemon=True)
        self._thread.start()

    @override
    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags & 1:
            self.add([span])

    def add(self, spans: Sequence[ReadableSpan | MakeSpans | None]) -> None:
        """Queue sampled spans, or drop all of them if the queue is full.

        A `MakeSpans` is a function that makes several spans. The exporting thread calls this
        function, because rarely executed code would be slow in the thread that answers requests.

        The queue counts each element of `spans` as one span. So a `MakeSpans` that makes n spans
        must come after n - 1 elements that are `None`.
        """
        queued = len(self._spans) + len(spans)
        if queued > self._room:
            with self._lock:
                self._dropped += len(spans)
            return
        self._spans.extend(spans)
        if queued >= self._batch and not self._wakes.is_set():
            self._wakes.set()

    @override
    def shutdown(self) -> None:
        """Export the queued spans, for at most `close_within` seconds."""
        self._is_closing = True
        self._wakes.set()
        self._thread.join(self._close_within)

    def counts(self) -> dict[str, int]:
        """Return how many spans were exported, failed or dropped since the start."""
        return {"exported": self._exported, "failed": self._failed, "dropped": self._dropped}

    def _export_batches(self) -> None:
        while not self._is_closing:
            self._wakes.wait(self._delay)
            self._wakes.clear()
            self._export()
            while len(self._spans) >= self._batch:
                self._export()
        while self._spans:
            self._export()
        for exporter in self._exporters:
            exporter.shutdown()

    def _export(self) -> None:
        taken = [self._spans.popleft() for _ in range(min(len(self._spans), self._batch))]
        batch = SpanBatch()
        batch.resource = self.resource
        results = set()
        try:
            for each in taken:
                if isinstance(each, ReadableSpan):
                    batch.append(each)
                elif each is not None:
                    batch += each()
            if batch:
                results = {exporter.export(batch) for exporter in self._exporters}
        except Exception:  # noqa: BLE001 - after any error, the next export may succeed
            _log.exception("cannot export spans")
            results = {SpanExportResult.FAILURE}
        if SpanExportResult.FAILURE in results:
            self._failed += len(batch)
        else:
            self._exported += len(batch)


def open_queue(environ: Mapping[str, str]) -> SpanQueue:
    """Return a queue with the exporters that the process's environment (`environ`) names.

    Raises:
        TracingProblem: an exporter is not installed, or a variable has an invalid value.
    """
    names = exporter_names(environ)
    exporters = [
        open_exporter(environ) if name == "otlp" else ConsoleSpanExporter() for name in names
    ]
    return SpanQueue(exporters, environ, takes_encoded=set(names) == {"otlp"})


def open_provider(queue: SpanQueue, attributes: Mapping[str, str]) -> TracerProvider:
    """Return a provider with the sampler, limits and resource of the process's environment.

    `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` override `attributes`.
    """
    given = OTELResourceDetector().detect().attributes
    resource = Resource.create({**attributes, **given})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(queue)
    queue.resource = resource
    return provider


def open_exporter(environ: Mapping[str, str], signal: str = "TRACES") -> Any:
    """Return the SDK's OTLP exporter for `TRACES` or `METRICS`.

    The exporters have no common type.

    Raises:
        TracingProblem: the exporter is not installed, or a variable has an invalid value.
    """
    for name in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        path = otlp_variable(environ, name, signal)
        if path and not Path(path).is_file():
            raise TracingProblem(f"`{OTLP}{name}` is `{path}`, which is not a file; correct it")
    protocol = otlp_variable(environ, "PROTOCOL", signal).strip() or "http/protobuf"
    if protocol not in _PACKAGES:
        _log.warning("OTEL_EXPORTER_OTLP_PROTOCOL is ignored", extra={"protocol": protocol})
    package = _PACKAGES.get(protocol, "http")
    kind, made = _KINDS[signal]
    try:
        module = import_module(f"opentelemetry.exporter.otlp.proto.{package}.{kind}_exporter")
    except ImportError as error:
        raise TracingProblem(
            f"`OTEL_EXPORTER_OTLP_PROTOCOL={protocol}` needs a package that is not installed"
            f" ({error}); run {install_command('otlp-grpc')}, or set it to `http/protobuf`"
        ) from error
    if signal == "TRACES":
        # Both exporters look up `encode_spans` in their module when they export.
        encode = encode_message if package == "grpc" else encode_spans
        setattr(module, "encode_spans", encode)  # noqa: B010
    # The specification says milliseconds, but the SDK's exporters read seconds.
    own = f"{OTLP}{signal}_TIMEOUT"
    longest = "OTEL_BSP_EXPORT_TIMEOUT" if signal == "TRACES" else "OTEL_METRIC_EXPORT_TIMEOUT"
    timeout = min(
        number(environ, own if environ.get(own) else f"{OTLP}TIMEOUT", default=10_000),
        number(environ, longest, default=30_000),
    )
    # The gRPC exporter does not support the value `none`, so translate it.
    compressed = otlp_variable(environ, "COMPRESSION", signal).strip().lower()
    compression = getattr(module.Compression, COMPRESSIONS.get(compressed, "NoCompression"))
    options: dict[str, Any] = {"timeout": timeout / 1000, "compression": compression}
    exporter = getattr(module, made)
    if package == "http" and not any(name.endswith(_CREDENTIALS) for name in environ):
        options |= _transport(otlp_variable(environ, "ENDPOINT", signal), exporter)
    try:
        return exporter(**options)
    except Exception as error:  # exporters raise various errors for invalid variables
        raise TracingProblem(f"the variables `{OTLP}*` are invalid: {error}") from error


def _transport(endpoint: str, exporter: Callable[..., object]) -> dict[str, Any]:
    """Return our transport for `exporter`, unless an export needs TLS, a proxy or a password.

    A post takes 0.36 ms of processor time. With `requests`, the SDK's default, it takes 0.94 ms.
    """
    endpoint = endpoint or "http://localhost"
    is_plain = endpoint.startswith("http:") and "@" not in endpoint
    if not is_plain or {"http", "all"} & getproxies().keys() or get_netrc_auth(endpoint):
        return {}
    if "_transport" not in signature(exporter).parameters:  # a later SDK may rename it
        return {}
    try:
        module = import_module("sluicegate.wire.otlp.transport")
    except ImportError:  # the SDK has the base class since version 1.45
        return {}
    return {"_transport": module.ExportTransport()}
