"""Formats exceptions for logs without their messages, and writes the lines of a log."""

import logging
import sys
import traceback
from types import TracebackType
from typing import TextIO

from typing_extensions import override

# The warnings of these loggers may quote a caller's `tracestate`, or headers with secrets.
_QUOTING = ("opentelemetry.trace.span", "opentelemetry.util.re")
_ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class SafeFormatter(logging.Formatter):
    """Formats an exception as its type and source lines, because its message may quote input."""

    @override
    def formatException(self, ei: _ErrorInfo) -> str:
        return trace_of(ei[1]) if ei[1] is not None else ""


def trace_of(error: BaseException) -> str:
    """Return the types and source lines of `error` and of its causes, innermost frame first."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    place = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    parts = [f"{type(error).__qualname__} at {place}" if place else type(error).__qualname__]
    if isinstance(error, BaseExceptionGroup):
        parts += [f"holding {trace_of(one)}" for one in error.exceptions]
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        parts.append(f"after {trace_of(before)}")
    return "; ".join(parts)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines; silently drops a line that cannot be written, for example on a full disk.

    By default, `logging` would print a traceback for each line that it cannot write.
    """

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def silence_quoting_loggers() -> None:
    """Drop warnings that may quote a caller's headers."""
    for quoting in _QUOTING:
        logging.getLogger(quoting).setLevel(logging.ERROR)
