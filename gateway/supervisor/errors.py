"""Declares the error of a failed start, and the exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `sluicegate`."""

    OK = 0
    FAILED = 1
    """A process did not start, or a command failed."""
    BUSY = 2
    """Another process uses a port or the data directory. Wrong arguments have this exit code,
    too."""
    CONFIGURATION = 3
    """The configuration document, the environment or a key is invalid."""


class CannotStart(Exception):
    """Sluicegate cannot start. The message says what to do."""

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
