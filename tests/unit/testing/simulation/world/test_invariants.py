"""Tests what is judged at the end of a simulated run."""

import msgspec

from testing.simulation.world.invariants import (
    STOP,
    Disturbance,
    request_logs,
    slow_stops,
    unclear_errors,
)
from tests.unit.testing.simulation.world.test_monitor import attempt, fault

LINE = msgspec.json.encode({"id": "req_1", "tenant": "acme"}) + b"\n"


def logged(content: bytes, *faults: Disturbance) -> list[str]:
    """Return what is wrong with the log of a region with one answer."""
    return list(request_logs({"eu": content}, [attempt()], faults, ["sk-acme"]))


def test_each_answer_has_a_line() -> None:
    assert not logged(LINE)
    assert logged(b"") == ["req_1 is not in the request log of eu"]
    assert logged(LINE + LINE) == ["req_1 is in the request log of eu twice"]


def test_faults_excuse_what_they_explain() -> None:
    assert not logged(LINE + LINE, fault("kill", "eu-gateway"))
    assert logged(b"", fault("kill", "eu-gateway"))
    assert not logged(b"\0{", fault("crash", "eu-gateway"))
    assert logged(b"", fault("crash", "eu-gateway", begun=-3.0, ended=-1.0))
    assert logged(LINE + b"\0{", fault("kill", "eu-gateway"))
    assert logged(LINE + LINE, fault(STOP, "eu-gateway"), fault("crash", "us-gateway"))


def test_a_log_has_no_text_and_no_secret() -> None:
    assert logged(LINE.replace(b"acme", b"sk-acme")) == ["the request log of eu has a secret"]
    assert logged(LINE.replace(b"acme", b"good film")) == ["the request log of eu has a text"]


def test_a_stop_ends_in_time_unless_something_else_is_wrong() -> None:
    stop = fault(STOP, "eu-backend", begun=1.0, ended=40.0)

    assert list(slow_stops([stop])) == ["eu-backend was away for 39.0 s after its stop"]
    assert not list(slow_stops([stop, fault("pause", "eu-backend", begun=3.0, ended=9.0)]))
    assert not list(slow_stops([fault(STOP, "eu-backend", begun=1.0, ended=9.0)]))


def test_every_error_says_what_failed() -> None:
    unclear = attempt(status=500, answer={"code": "internal_error"})
    clear = attempt(status=500, answer={"code": "model_failed"})

    assert not list(unclear_errors([clear]))
    assert list(unclear_errors([unclear])) == ["eu-0 said internal_error to req_1"]
