"""Reports that a command has failed, with a line on standard error and an exit code."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import click

from sluicegate.gateway.config.load import explain
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.supervisor.errors import CannotStart, ExitCode

ADMIN_REFUSED = 4


class Failure(click.ClickException):
    """Ends a command with a line on standard error and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click's other errors set it on the class


class UnconfirmedFailure(Failure):
    """Ends a command that cannot know whether its request was carried out."""


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors at the start of a process into a `Failure`."""
    try:
        yield
    except CannotStart as error:
        raise Failure(str(error), error.exit_code) from error
    except ConfigurationError as error:
        raise Failure(explain(error), ExitCode.CONFIGURATION) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        place = f"`{error.filename}`" if error.filename else "the data directory"
        raise Failure(f"the disk of {place} is full: free some space", ExitCode.FAILED) from error
