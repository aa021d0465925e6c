"""Declares the error and the exit codes with which `sluicegate` fails to start."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `sluicegate`."""

    OK = 0
    FAILED = 1
    """A process did not start, or the command failed."""
    BUSY = 2
    """A port or the data directory is used by another process; wrong usage of the command."""
    CONFIGURATION = 3
    """The configuration document, the environment or a key is not valid."""


class CannotStart(Exception):
    """The start failed; the message says what to do."""

    def __init__(self, message: str, *, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
