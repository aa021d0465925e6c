"""Runs `python -m backends`; `sluicegate models` executes this and shows that name in its usage."""

import sys

from backends.cli import main

main(prog_name="sluicegate" if sys.argv[1:2] == ["models"] else "python -m backends")
