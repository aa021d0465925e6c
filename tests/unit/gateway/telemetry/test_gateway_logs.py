"""Log lines of the gateway: one JSON object each, and no text of a caller."""

import logging
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from sluicegate.gateway.telemetry.logs import JsonFormatter, TextFormatter

_TEXT = "the text of a caller"


def line(**fields: object) -> dict[str, object]:
    record = logging.makeLogRecord({"name": "gateway.x", "levelname": "ERROR", **fields})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, object] = msgspec.json.decode(text)
    return found


def raised(work: Callable[[], object]) -> dict[str, object]:
    """Return the line that reports what `work` raised."""
    try:
        work()
    except Exception:  # noqa: BLE001 - whatever it was is what is to be logged
        return line(msg="it failed", exc_info=sys.exc_info())
    raise AssertionError("nothing was raised")


def fail() -> None:
    raise ValueError(_TEXT)


def fail_because() -> None:
    try:
        fail()
    except ValueError as error:
        raise RuntimeError(_TEXT) from error


def fail_meanwhile() -> None:
    try:
        fail()
    finally:
        int(_TEXT)


def fail_together() -> None:
    raise ExceptionGroup(_TEXT, [ValueError(_TEXT), KeyError(_TEXT)])


def test_a_line_has_its_fields_apart() -> None:
    found = line(msg="the part %s ended", args=("x",), request_id="req_1", path=Path("a"))

    assert found["level"] == "error"
    assert found["logger"] == "gateway.x"
    assert found["message"] == "the part x ended"
    assert (found["request_id"], found["path"]) == ("req_1", "a")


def test_an_exception_is_named_with_its_place() -> None:
    told = str(raised(fail)["exception"])

    assert told.startswith("ValueError at ")
    assert "test_gateway_logs.py" in told
    assert " fail < " in told


def test_what_led_to_an_exception_is_named_too() -> None:
    assert "; after ValueError at " in str(raised(fail_because)["exception"])
    assert "; after ValueError at " in str(raised(fail_meanwhile)["exception"])
    assert "; holding KeyError" in str(raised(fail_together)["exception"])


def test_no_line_says_what_an_exception_says() -> None:
    works = (fail, fail_because, fail_meanwhile, fail_together)

    lines = [msgspec.json.encode(raised(work)).decode() for work in works]

    assert [text for text in lines if _TEXT in text] == []


def test_a_line_of_text_has_the_fields_behind_the_message() -> None:
    record = logging.makeLogRecord(
        {"name": "gateway.x", "levelname": "WARNING", "msg": "it\nfailed", "created": 0.0}
        | {"count": 3, "reason": "a b", "items": {"hit": 1}, "model": "m", "broken": "x\ny"}
    )

    text = TextFormatter("worker-0").format(record)

    time, rest = text.split(" ", 1)
    assert len(time) == len("2026-11-23T00:00:00.000+00:00")
    assert rest == (
        'warning worker-0 it failed logger=gateway.x count=3 reason="a b" items={"hit":1} model=m'
        ' broken="x\\ny"'
    )
