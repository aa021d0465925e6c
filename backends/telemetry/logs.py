"""Writes logs to standard output as JSON lines, each with a constant message and fields."""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from typing_extensions import override

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Warnings of these loggers quote `tracestate` headers of callers, and headers with secrets.
_QUOTING = ("opentelemetry.trace.span", "opentelemetry.util.re")
_ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class JsonFormatter(logging.Formatter):
    """Formats a record as a line with one JSON object; fields of `extra` become JSON fields.

    An exception is logged with its type and source lines, but without its message.
    """

    @override
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            # Keep only the first line, because asyncio appends lines that may quote an exception's
            # message.
            "message": record.getMessage().partition("\n")[0],
        }
        line.update((k, v) for k, v in vars(record).items() if k not in _STANDARD)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

    @override
    def formatException(self, ei: _ErrorInfo) -> str:
        """Return an exception's type and source lines, without its message."""
        return trace_of(ei[1]) if ei[1] is not None else ""


def trace_of(error: BaseException) -> str:
    """Return the types and source lines of `error` and of its causes, innermost frame first.

    The messages are left out, because they may quote input.
    """
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


def configure_logging(*, level: int = logging.INFO) -> None:
    """Send every log line of the process to standard output as JSON."""
    handler = LineHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for quoting in _QUOTING:
        logging.getLogger(quoting).setLevel(logging.ERROR)
