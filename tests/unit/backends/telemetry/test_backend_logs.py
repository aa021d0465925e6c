"""Log lines of a backend."""

import json
import logging
import sys

from sluicegate.backends.telemetry.logs import JsonFormatter


def test_a_line_is_one_json_object_with_its_fields_apart() -> None:
    record = logging.makeLogRecord(
        {
            "name": "sluicegate.backends.app",
            "levelname": "INFO",
            "msg": "backend started",
            "address": "a:1",
        }
    )

    line = JsonFormatter().format(record)

    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == "backend started"
    assert found["address"] == "a:1"
    assert found["level"] == "info"


def test_what_an_exception_says_may_quote_a_text_and_is_not_logged() -> None:
    line = JsonFormatter().format(_record_of_failure())

    found = json.loads(line)
    assert "secret" not in line
    assert found["error"].startswith("RuntimeError at ")
    assert "_record_of_failure" in found["error"]
    assert "holding ValueError at " in found["error"]
    assert "holding KeyError" in found["error"]


def _record_of_failure() -> logging.LogRecord:
    record = logging.makeLogRecord({"msg": "an item failed"})
    try:
        try:
            int("my secret")
        except ValueError as error:
            several = ExceptionGroup("my secret", [error, KeyError("secret")])
            raise RuntimeError("my secret") from several
    except RuntimeError:
        record.exc_info = sys.exc_info()
    return record


def test_what_asyncio_says_of_a_lost_task_is_cut_before_what_the_task_raised() -> None:
    line = JsonFormatter().format(
        logging.makeLogRecord({"msg": "Task exception was never retrieved\nfuture: secret"})
    )

    assert json.loads(line)["message"] == "Task exception was never retrieved"
