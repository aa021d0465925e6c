"""Runs `python -m backends`; `sluicegate` executes this and shows its own name in the usage."""

import gc
import sys


def run() -> None:
    """Import the command line and run it."""
    # Modules stay: collections while they are imported would take a fifth of the start.
    gc.disable()
    from backends.settings import limit_blas_threads  # noqa: PLC0415

    limit_blas_threads()
    from backends.cli import main  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    is_command = sys.argv[1:2] in (["models"], ["backend"])
    main(prog_name="sluicegate" if is_command else "python -m backends")


run()
