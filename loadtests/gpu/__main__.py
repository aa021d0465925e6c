"""Runs all GPU sections: `python -m loadtests.gpu --output DIR`; given a name, that section."""

import sys

from loadtests.gpu.command import gpu_command, run_section
from loadtests.gpu.plan import SECTIONS, unpack
from loadtests.gpu.results import Journal


def main() -> None:
    """Run the command, or the section that the command started this process for."""
    if len(sys.argv) != 2 or sys.argv[1] not in SECTIONS:
        gpu_command()
        return
    section = next(name for name in SECTIONS if name == sys.argv[1])
    options = unpack(sys.stdin.buffer.read())
    state = run_section(section, options)
    Journal(options).close(section, state)


if __name__ == "__main__":
    main()
