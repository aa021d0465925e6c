"""Reads trace contexts of requests in the formats that `OTEL_PROPAGATORS` names.

The code of this module reads W3C Trace Context. OpenTelemetry's propagators read all other formats,
such as `b3`, if the propagators' packages are installed. Requests to backends always have W3C Trace
Context. `baggage` is neither read nor passed on.
"""

import logging
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Final

from sluicegate.gateway.telemetry.trace_context import context_of, split_context

Headers = Sequence[tuple[bytes, bytes]]
DEFAULT: Final = frozenset({"tracecontext", "baggage"})
_log = logging.getLogger(__name__)


class ContextReader:
    """Reads trace contexts in the formats that `names` lists.

    `names` is the value of `OTEL_PROPAGATORS`. If a format is unknown, or its package is not
    installed, a warning is logged and the format is ignored.
    """

    def __init__(self, names: str = "") -> None:
        formats = {name.strip().lower() for name in names.split(",")} - {""} or DEFAULT
        self._reads_w3c = "tracecontext" in formats and "none" not in formats
        self.split = split_context if self._reads_w3c else _without_context
        """Returns the trace context in a request's bytes, and the bytes without the trace
        context."""
        others = set() if "none" in formats else formats - {"tracecontext", "baggage"}
        self._others = [found for name in sorted(others) if (found := _installed(name))]

    def read(self, headers: Headers) -> str:
        """Return the trace context in `headers`, whose names are in lower case."""
        context = context_of(headers) if self._reads_w3c else ""
        if context or not self._others:
            return context
        from opentelemetry.trace import get_current_span  # noqa: PLC0415 - rarely needed

        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        for propagator in self._others:
            found = get_current_span(propagator.extract(carrier)).get_span_context()
            if found.is_valid:
                return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
        return ""


def _without_context(request: bytes) -> tuple[str, bytes]:
    return "", split_context(request)[1]


def _installed(name: str) -> Any:  # a `TextMapPropagator` of any package, or `None`
    found = entry_points(group="opentelemetry_propagator", name=name)
    try:
        (entry,) = found
        return entry.load()()
    except Exception:  # noqa: BLE001 - whatever a propagator's package raises
        _log.warning(
            "an `OTEL_PROPAGATORS` format is ignored because its package is not installed",
            extra={"propagator": name},
        )
        return None
