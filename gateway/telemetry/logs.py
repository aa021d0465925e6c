"""Writes log lines to standard output as JSON or text. A line has a constant message and fields."""

import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

import msgspec
from typing_extensions import override

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}

# The warnings of these loggers may contain a caller's `tracestate`, or headers with secrets.
_QUOTING = ("opentelemetry.trace.span", "opentelemetry.util.re")
_ErrorInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    An exception is shown by its type and origin only. `process` is the name of this process,
    because several processes write to the same output.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as a line of JSON."""
        return msgspec.json.encode(self.fields(record), enc_hook=str).decode()

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the fields of `record`, beginning with the fields that all lines have."""
        fields: dict[str, object] = {
            # Times are RFC 3339 in UTC, as in the logs of backends.
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return fields

    @override
    def formatException(self, ei: _ErrorInfo) -> str:
        """Return the type and origin of the exception, but not its message.

        The message may contain a caller's text.
        """
        return _describe(ei[1]) if ei[1] is not None else ""


class TextFormatter(JsonFormatter):
    """Formats a record as text: time, level, process, message, and then fields as `name=value`."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as one line of text. Values are JSON, so they contain no line breaks."""
        fields = self.fields(record)
        head = [str(fields.pop(name)) for name in ("time", "level", "process") if name in fields]
        message = str(fields.pop("message")).replace("\n", " ")
        rest = [f"{name}={_text(value)}" for name, value in fields.items()]
        return " ".join([*head, message, *rest])


def _text(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and value and not set(value) & set(' "='):
        return value
    return msgspec.json.encode(value, enc_hook=str).decode()


def _describe(error: BaseException) -> str:
    """Return the type and the stack frames (innermost first) of `error` and of each cause."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    place = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames)
    parts = [f"{type(error).__qualname__} at {place}" if place else type(error).__qualname__]
    if isinstance(error, BaseExceptionGroup):
        parts += [f"holding {_describe(one)}" for one in error.exceptions]
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        parts.append(f"after {_describe(before)}")
    return "; ".join(parts)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and silently drops lines that cannot be written, for example on a full disk.

    `logging` would print a traceback to the same output for each such line.
    """

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def configure_logging(level: str, *, process: str, is_text: bool = False) -> None:
    """Send all log records of at least `level` to standard output, marked with `process`.

    Uncaught exceptions are logged, too.
    """
    handler = LineHandler(sys.stdout)
    handler.setFormatter((TextFormatter if is_text else JsonFormatter)(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every probe
    for quoting in _QUOTING:
        logging.getLogger(quoting).setLevel(logging.ERROR)
    sys.excepthook = _log_uncaught


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical(
        "the process ends after an uncaught exception", exc_info=(kind, error, trace)
    )
