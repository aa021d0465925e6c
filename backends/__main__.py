"""`python -m backends`; `sluicegate models` becomes this, and is what its usage lines name."""

import sys

from backends.cli import main

main(prog_name="sluicegate" if sys.argv[1:2] == ["models"] else "python -m backends")
