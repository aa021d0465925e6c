"""`python -m backends`."""

from backends.cli import main

main(prog_name="python -m backends")
