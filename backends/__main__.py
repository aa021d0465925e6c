"""Runs `python -m backends`; `sluicegate models` executes this and shows that name in its usage."""

import gc
import sys


def run() -> None:
    """Import the command line and run it."""
    # Modules stay: collections while they are imported would take a fifth of the start.
    gc.disable()
    from backends.cli import main  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    main(prog_name="sluicegate" if sys.argv[1:2] == ["models"] else "python -m backends")


run()
