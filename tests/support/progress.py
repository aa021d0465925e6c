"""Reports the progress of a run over several processes in a few lines."""

from time import perf_counter

import pytest

_TESTS_PER_LINE = 1000


class Progress:
    """Names each failed test at once, and prints a line after every thousand tests.

    pytest's letter for each test would fill three screens, and it names failures at the end only.
    """

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._started = perf_counter()
        self._finished = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Return the status that pytest would, without its letter."""
        if report.passed:
            return ("passed", "", "PASSED") if report.when == "call" else ("", "", "")
        if report.failed and report.when != "call":
            return "error", "", "ERROR"
        return report.outcome, "", report.outcome.upper()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the test; name it if it failed."""
        if report.failed:
            self._terminal.write_line(f"FAILED {report.nodeid} ({report.when})", red=True)
        self._finished += report.when == "teardown"
        if report.when == "teardown" and self._finished % _TESTS_PER_LINE == 0:
            seconds = perf_counter() - self._started
            self._terminal.write_line(f"{self._finished:,} tests in {seconds:.0f} s")
