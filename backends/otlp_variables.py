"""Reads the `OTEL_*` variables of traces as OpenTelemetry specifies them."""

import logging
from collections.abc import Mapping
from typing import Final

OTLP: Final = "OTEL_EXPORTER_OTLP_"
_log = logging.getLogger(__name__)


def is_tracing_wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether `environ` asks for traces.

    Only where it names an exporter or an OTLP endpoint: the SDK's default, a collector on this
    machine, would log errors on installations without one.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = exporter_names(environ)
    has_endpoint = environ.get(OTLP + "TRACES_ENDPOINT") or environ.get(OTLP + "ENDPOINT")
    return names != ["none"] and bool(names or has_endpoint)


def exporter_names(environ: Mapping[str, str]) -> list[str]:
    """Return the exporters that are named, in their order."""
    names = environ.get("OTEL_TRACES_EXPORTER", "").split(",")
    return [name.strip() for name in names if name.strip()]


def otlp_variable(environ: Mapping[str, str], name: str) -> str:
    """Return a variable of the exporter; that of traces alone wins over that of all signals."""
    return environ.get(f"{OTLP}TRACES_{name}") or environ.get(OTLP + name, "")


def number(environ: Mapping[str, str], name: str, *, default: int) -> int:
    """Return a whole number above 0; what is none is ignored with a warning, as is specified."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isdecimal() and int(text) > 0:
        return int(text)
    _log.warning("a variable is no whole number above 0 and is ignored", extra={"variable": name})
    return default
