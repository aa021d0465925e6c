"""Runs `python -m backends`; `sluicegate` executes this and shows its own name in the usage."""

import sys

from backends.cli import main

main(prog_name="sluicegate" if sys.argv[1:2] in (["models"], ["backend"]) else "python -m backends")
