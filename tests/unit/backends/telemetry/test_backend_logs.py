"""Log lines of a backend."""

import json
import logging

from backends.telemetry.logs import JsonFormatter


def test_a_line_is_one_json_object_with_its_fields_apart() -> None:
    record = logging.makeLogRecord(
        {"name": "backends.app", "levelname": "INFO", "msg": "backend serves", "address": "a:1"}
    )

    line = JsonFormatter().format(record)

    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == "backend serves"
    assert found["address"] == "a:1"
    assert found["level"] == "info"
