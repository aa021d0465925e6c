"""Lines of a log that cannot be written or made."""

import contextlib
import logging
import sys
from pathlib import Path

import pytest

from sluicegate.wire.logs import LineHandler, SafeFormatter


def test_a_line_that_a_full_disk_does_not_take_leaves_no_trace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 - its end fails, too
    handler = LineHandler(full)
    handler.setFormatter(SafeFormatter())

    handler.handle(logging.makeLogRecord({"msg": "a line"}))

    with contextlib.suppress(OSError):
        full.close()
    assert capsys.readouterr().err == ""


def test_a_line_that_cannot_be_made_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LineHandler(sys.stdout)
    handler.setFormatter(SafeFormatter())

    handler.handle(logging.makeLogRecord({"msg": "%d", "args": ("no number",)}))

    assert "--- Logging error ---" in capsys.readouterr().err
