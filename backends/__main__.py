"""Runs `python -m sluicegate.backends`: also `sluicegate backend` and `sluicegate models`."""

import sys

from sluicegate.wire.importing import without_collections


def run() -> None:
    """Import the command line and run it; a command imports the rest."""
    with without_collections():
        from sluicegate.backends.settings import limit_blas_threads  # noqa: PLC0415

        # The limit must be set before a command imports NumPy.
        limit_blas_threads()
        from sluicegate.backends.cli import main  # noqa: PLC0415

    is_command = sys.argv[1:2] in (["models"], ["backend"])
    main(prog_name="sluicegate" if is_command else "python -m sluicegate.backends")


run()
