"""Writes log lines to standard output as JSON or text. A line has a constant message and fields."""

import logging
import sys
from datetime import UTC, datetime
from types import TracebackType

import msgspec
from typing_extensions import override

from sluicegate.wire.logs import LineHandler, SafeFormatter, silence_quoting_loggers

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonFormatter(SafeFormatter):
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


def configure_logging(level: str, *, process: str, is_text: bool = False) -> None:
    """Send all log records of at least `level` to standard output, marked with `process`.

    Uncaught exceptions are logged, too.
    """
    handler = LineHandler(sys.stdout)
    handler.setFormatter((TextFormatter if is_text else JsonFormatter)(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every probe
    silence_quoting_loggers()
    sys.excepthook = _log_uncaught


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    logging.getLogger(__name__).critical(
        "the process ends after an uncaught exception", exc_info=(kind, error, trace)
    )
