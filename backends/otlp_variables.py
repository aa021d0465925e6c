"""Reads the `OTEL_*` variables of traces and metrics as OpenTelemetry specifies them.

What is empty counts as unset, and so does what is invalid, with a warning. The SDK, which reads
some of them as it is imported, raises instead: so `drop_unusable` comes first.
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
# What the SDK takes; it quotes in the log what it does not.
_HEADER = re.compile(r"[!#-'*+\-.0-9A-Z^-z|~]+[ \t]*=[ \t]*[ !#-+\--:<-\[\]-~]*")
_log = logging.getLogger(__name__)


class TracingProblem(ValueError):
    """The variables ask for what cannot be had; the message names the one to change."""


def drop_unusable(environ: MutableMapping[str, str]) -> None:
    """Remove the variables that are empty or invalid from `environ`, the process's own."""
    for name, text in list(environ.items()):
        if not name.startswith("OTEL_") or _is_usable(name, text.strip().lower()):
            continue
        if text.strip():
            _log.warning("a variable is invalid and is ignored", extra={"variable": name})
        del environ[name]
    unknown = set(_named(environ.get("OTEL_TRACES_EXPORTER", ""))) - _EXPORTERS - {"none"}
    if unknown:
        _log.warning("an exporter is unknown and is ignored", extra={"exporters": sorted(unknown)})


def is_tracing_wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether `environ` asks for traces.

    Only where it names an exporter or an OTLP endpoint: the SDK's default, a collector on this
    machine, would log errors on installations without one.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if _named(environ.get("OTEL_TRACES_EXPORTER", "")):
        return bool(exporter_names(environ))
    return bool(otlp_variable(environ, "ENDPOINT").strip())


def exporter_names(environ: Mapping[str, str]) -> list[str]:
    """Return the exporters to use, in their order; empty where all that are named are unknown."""
    names = _named(environ.get("OTEL_TRACES_EXPORTER", "")) or ["otlp"]
    return [name for name in names if name in _EXPORTERS]


def is_push_wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether `environ` asks for metrics to be pushed: only where it names the exporter."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return "otlp" in _named(environ.get("OTEL_METRICS_EXPORTER", ""))


def otlp_variable(environ: Mapping[str, str], name: str, signal: str = "TRACES") -> str:
    """Return a variable of the exporter; that of the signal alone wins over that of all."""
    return environ.get(f"{OTLP}{signal}_{name}") or environ.get(OTLP + name, "")


def number(environ: Mapping[str, str], name: str, *, default: int) -> int:
    """Return a whole number above 0; what is none is ignored with a warning, as is specified."""
    text = environ.get(name, "").strip()
    if not text:
        return default
    if text.isdecimal() and int(text) > 0:
        return int(text)
    _log.warning("a variable is no whole number above 0 and is ignored", extra={"variable": name})
    return default


def _is_usable(name: str, text: str) -> bool:
    """Tell whether `text`, in lower case, is a value that the SDK takes without an error."""
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
    """Tell whether a pair is a header that can be sent, without line breaks."""
    return _HEADER.fullmatch(pair) is not None and unquote(pair).replace("\t", " ").isprintable()


def _named(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
