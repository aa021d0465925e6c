"""Reads the `OTEL_*` variables of traces and metrics as OpenTelemetry specifies them.

Empty variables count as unset. Invalid variables are ignored with a warning. The SDK would raise an
error for invalid variables during its import, so call `drop_unusable` before the import.
"""

import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Final
from urllib.parse import unquote

OTLP: Final = "OTEL_EXPORTER_OTLP_"
COMPRESSIONS: Final = {"none": "NoCompression", "gzip": "Gzip", "deflate": "Deflate"}
_EXPORTERS = frozenset({"otlp", "console"})
_NUMBERS = ("TIMEOUT", "LIMIT")
_HEADERS = "HEADERS"
_PAIRS = "OTEL_RESOURCE_ATTRIBUTES"
# Matches headers that the SDK accepts. The SDK would log all other headers, which may contain
# secrets.
_HEADER = re.compile(r"[!#-'*+\-.0-9A-Z^-z|~]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
_log = logging.getLogger(__name__)


class TracingProblem(ValueError):
    """Reports a tracing configuration that cannot work; the message names the variable."""


def drop_unusable(environ: MutableMapping[str, str]) -> None:
    """Remove empty and invalid `OTEL_*` variables from the process's environment (`environ`)."""
    for name, text in list(environ.items()):
        if not name.startswith("OTEL_") or _is_usable(name, text.strip().lower()):
            continue
        if text.strip():
            _log.warning("ignoring an invalid variable", extra={"variable": name})
        del environ[name]
    unknown = set(_named(environ.get("OTEL_TRACES_EXPORTER", ""))) - _EXPORTERS - {"none"}
    if unknown:
        _log.warning("ignoring an unknown exporter", extra={"exporters": sorted(unknown)})


def is_tracing_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether `environ` names a trace exporter or an OTLP endpoint.

    In the SDK, tracing is on by default. In this program, it is off, because the SDK logs errors if
    there is no local collector.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if _named(environ.get("OTEL_TRACES_EXPORTER", "")):
        return bool(exporter_names(environ))
    return bool(otlp_variable(environ, "ENDPOINT").strip())


def exporter_names(environ: Mapping[str, str]) -> list[str]:
    """Return the known trace exporters to use, in order; the default is `otlp`."""
    names = _named(environ.get("OTEL_TRACES_EXPORTER", "")) or ["otlp"]
    return [name for name in names if name in _EXPORTERS]


def is_push_wanted(environ: Mapping[str, str]) -> bool:
    """Return whether `environ` names the OTLP exporter for metrics."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return "otlp" in _named(environ.get("OTEL_METRICS_EXPORTER", ""))


def otlp_variable(environ: Mapping[str, str], name: str, signal: str = "TRACES") -> str:
    """Return the value of a variable of the exporter.

    The variable for `signal` overrides the variable for all signals.
    """
    return environ.get(f"{OTLP}{signal}_{name}") or environ.get(OTLP + name, "")


def number(environ: Mapping[str, str], name: str, *, default: int) -> int:
    """Return the value of a variable that must be a positive integer, or `default`."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isdecimal() and int(text) > 0:
        return int(text)
    _log.warning("ignoring a variable that is not a positive integer", extra={"variable": name})
    return default


def _is_usable(name: str, text: str) -> bool:
    """Return whether the SDK accepts the value `text`, which is in lower case."""
    if not text:
        return False
    if name.endswith(_NUMBERS):
        return text.isascii() and text.isdecimal()
    if name.endswith("COMPRESSION"):
        return text in COMPRESSIONS
    if name.endswith(_HEADERS):
        return all(map(_is_header, _named(text)))
    if name == _PAIRS:
        return all("=" in pair for pair in _named(text))
    return True


def _is_header(pair: str) -> bool:
    """Return whether `name=value` is a valid header without line breaks."""
    return _HEADER.fullmatch(pair) is not None and unquote(pair).replace("\t", " ").isprintable()


def _named(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
