"""Runs `python -m backends`, which is also `sluicegate backend` and `sluicegate models`."""

import gc
import sys


def run() -> None:
    """Import the command line and run it."""
    # Imports create no garbage, but collecting it would take a fifth of the start time.
    gc.disable()
    from backends.settings import limit_blas_threads  # noqa: PLC0415

    limit_blas_threads()
    from backends.cli import main  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    is_command = sys.argv[1:2] in (["models"], ["backend"])
    main(prog_name="sluicegate" if is_command else "python -m backends")


run()
