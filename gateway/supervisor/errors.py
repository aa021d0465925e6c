"""Declares the error and exit codes of a failed start."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `sluicegate`."""

    OK = 0
    FAILED = 1
    """A process did not start, or a command failed."""
    BUSY = 2
    """Another process uses a port or the data directory; also wrong usage of a command."""
    CONFIGURATION = 3
    """The configuration document, the environment or a key is invalid."""


class CannotStart(Exception):
    """Sluicegate cannot start; the message says what to do."""

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
