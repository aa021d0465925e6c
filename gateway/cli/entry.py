"""Starts the command line. If a package is missing, says what to install."""

import os
import sys

from sluicegate.wire.installing import install_command

_OWN = "sluicegate"
_BULK = "bulk"


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    if sys.argv[1:2] == [_BULK]:
        # A machine for bulk jobs may not have the packages that a gateway needs.
        command_line = [sys.executable, "-P", "-m", f"{_OWN}.{_BULK}", *sys.argv[2:]]
        os.execv(sys.executable, command_line)  # noqa: S606 - its own program
    try:
        # Imported late, because a client's machine may not have the packages.
        from sluicegate.gateway.cli.root import main as command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == _OWN:
            raise
        sys.exit(
            f"Error: the package `{package}` is not installed; run {install_command('up')}. The"
            " extra `up` has all packages for one machine; the extra `gateway` has those for a"
            " gateway alone"
        )
    command()
