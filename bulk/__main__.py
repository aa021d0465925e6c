"""Runs `python -m sluicegate.bulk`, which is also `sluicegate bulk`."""

import sys

from sluicegate.wire.installing import install_command

_OWN = "sluicegate"


def main() -> None:
    """Run the command, or tell what to install if a package is missing."""
    try:
        from sluicegate.backends.settings import limit_blas_threads  # noqa: PLC0415 - a machine may lack both

        limit_blas_threads()
        from sluicegate.bulk.cli import main as command  # noqa: PLC0415
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package == _OWN:
            raise
        sys.exit(
            f"Error: the package `{package}` is not installed; run"
            f" {install_command('backend-cpu,bulk')}"
        )
    command(prog_name="sluicegate bulk")


if __name__ == "__main__":
    main()
