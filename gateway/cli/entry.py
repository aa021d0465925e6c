"""Starts the command line; says what to install where packages of it are missing."""

import os
import sys

from backends.installing import install_command

_OWN = ("backends", "gateway")
_BULK = "bulk"


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    if sys.argv[1:2] == [_BULK]:
        # A machine for bulk jobs has none of what a gateway needs.
        command_line = [sys.executable, "-P", "-m", _BULK, *sys.argv[2:]]
        os.execv(sys.executable, command_line)  # noqa: S606 - its own program
    try:
        # Imported here: a client's machine may have none of what it needs.
        from gateway.cli.root import main as command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in _OWN:
            raise
        sys.exit(
            f"Error: the package `{package}` is not installed; run {install_command('up')}."
            " `up` is all that one machine needs; `gateway`, in its place, what a gateway needs"
        )
    command()
