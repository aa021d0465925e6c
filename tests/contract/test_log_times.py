"""Lines of gateways and backends have the time in one form, whatever the machine's zone."""

import json
import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest

from sluicegate.backends.telemetry.logs import JsonFormatter as OfBackends
from sluicegate.gateway.telemetry.logs import JsonFormatter as OfGateways, TextFormatter

FORMATTERS = [OfGateways(), TextFormatter(), OfBackends()]


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def time_of(line: str) -> str:
    return str(json.loads(line)["time"]) if line.startswith("{") else line.split(" ", maxsplit=1)[0]


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("formatter", FORMATTERS, ids=["gateway", "gateway-text", "backend"])
def test_a_time_has_milliseconds_and_the_zone_utc(formatter: logging.Formatter) -> None:
    record = logging.makeLogRecord({"msg": "it happens", "created": 1_764_345_600.5184})

    found = time_of(formatter.format(record))

    assert found == "2025-11-28T16:00:00.518+00:00"
    assert datetime.fromisoformat(found).utcoffset() == timedelta(0)
