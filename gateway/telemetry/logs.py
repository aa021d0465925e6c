"""Logs as JSON lines on standard error: a constant message, the rest as fields."""

import logging
import sys

import msgspec
from typing_extensions import override

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "color_message"}


class JsonFormatter(logging.Formatter):
    """One JSON object a line. Exceptions are named, with the place they came from, no more."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as a line of JSON."""
        fields: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {k: v for k, v in record.__dict__.items() if k not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields, enc_hook=str).decode()


def configure_logging(level: str) -> None:
    """Send every logger's records of `level` and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("httpx", "uvicorn.error"):  # a line for each probe, and for each start
        logging.getLogger(chatty).setLevel(logging.WARNING)
