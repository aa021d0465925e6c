"""Reads the trace context of requests in the formats that `OTEL_PROPAGATORS` names.

W3C Trace Context is read here. Others, such as `b3`, are read by the propagators of OpenTelemetry,
where their packages are installed. Backends are always sent W3C Trace Context; `baggage` is read by
nobody, and is not passed on.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from opentelemetry.trace import get_current_span

from gateway.errors import ConfigurationError
from gateway.telemetry.trace_context import context_of, split_context

Headers = Sequence[tuple[bytes, bytes]]
DEFAULT: Final = "tracecontext,baggage"


class ContextReader:
    """Reads contexts of requests in the formats `names`, the value of `OTEL_PROPAGATORS`.

    Raises:
        ConfigurationError: a format is unknown, or its package is not installed.
    """

    def __init__(self, names: str = "") -> None:
        formats = {name.strip().lower() for name in (names or DEFAULT).split(",")}
        self._reads_w3c = "tracecontext" in formats and "none" not in formats
        self._others = None
        if formats - {"tracecontext", "baggage", "none"} and "none" not in formats:
            self._others = _sdk_propagator()

    def read(self, headers: Headers) -> str:
        """Return the trace context that `headers` (names in lower case) carry."""
        context = context_of(headers) if self._reads_w3c else ""
        if context or self._others is None:
            return context
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        found = get_current_span(self._others.extract(carrier)).get_span_context()
        if not found.is_valid:
            return ""
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    def split(self, request: bytes) -> tuple[str, bytes]:
        """Return the trace context of a request's bytes, and these without it."""
        context, request = split_context(request)
        return context if self._reads_w3c else "", request


def _sdk_propagator() -> Any:  # a `TextMapPropagator`, which the import may refuse to make
    try:
        return import_module("opentelemetry.propagate").get_global_textmap()
    except Exception as error:  # whatever a propagator's package raises
        raise ConfigurationError(
            f"`OTEL_PROPAGATORS` cannot be used ({error}): install the propagator's package, or"
            f" set it to `{DEFAULT}`"
        ) from error
