"""Starts the command line; says what to install where packages of it are missing."""

import sys

_OWN = ("backends", "gateway")


def main() -> None:
    """Run the command that `sys.argv` names, and exit."""
    try:
        # Imported here: a client's machine may have none of what it needs.
        from gateway.cli.root import main as command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package in _OWN:
            raise
        sys.exit(
            f"Error: the package `{package}` is not installed; `pip install 'sluicegate[up]'`"
            " brings all that one machine needs, `'sluicegate[gateway]'` what a gateway needs"
        )
    command()
