"""The progress of a bulk job: a line, its rate, and the time left."""

import io

from typing_extensions import override

from sluicegate.bulk.progress import ProgressReport, shown_duration


class _Terminal(io.StringIO):
    @override
    def isatty(self) -> bool:
        return True


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_in_thirty_seconds() -> None:
    clock, stream = _Clock(), io.StringIO()
    report = ProgressReport(stream, clock, total=10_000)
    report.begin(1000)

    for clock.now in range(1, 62):
        report.update(1000 + int(clock.now) * 100, failed=2)

    assert stream.getvalue().splitlines() == [
        "4,000/10,000 (40.0%) rows, 100 rows/s, 1 min 0 s left, 2 failed",
        "7,000/10,000 (70.0%) rows, 100 rows/s, 30 s left, 2 failed",
    ]


def test_a_terminal_has_one_line_that_is_rewritten() -> None:
    clock, stream = _Clock(), _Terminal()
    report = ProgressReport(stream, clock)
    report.begin(0)

    for clock.now in (1.0, 2.0):
        report.update(int(clock.now) * 50, failed=0)
    report.end(100, 0)

    lines = ["50 rows, 50 rows/s", "100 rows, 50 rows/s", "100 rows, 50 rows/s"]
    assert stream.getvalue() == "".join(f"\r{line}\x1b[K" for line in lines) + "\n"


def test_durations_are_for_people() -> None:
    shown = [shown_duration(seconds) for seconds in (0.4, 61, 7265)]
    assert shown == ["0 s", "1 min 1 s", "2 h 1 min"]
