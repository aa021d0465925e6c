"""Writes logs to standard output as JSON lines, each with a constant message and fields."""

import json
import logging
import sys
from datetime import UTC, datetime

from typing_extensions import override

from sluicegate.wire.logs import LineHandler, SafeFormatter, silence_quoting_loggers

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(SafeFormatter):
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


def configure_logging() -> None:
    """Send every log line of the process to standard output as JSON."""
    handler = LineHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    silence_quoting_loggers()
