"""Packs a graph's weights for this CPU.

The command is `python -m sluicegate.backends.executors.packing GRAPH TARGET`.

Large graphs are packed in a child process, because packing leaks tens of MiB.
"""

import subprocess
import sys
from pathlib import Path

from sluicegate.backends.executors.provider import save_packed

# Timeout in seconds. A graph of several gigabytes takes a minute.
_LONGEST = 300.0
# Smaller graphs leak little, and packing them is faster than starting a process.
_LEAST_APART = 8 * 1024 * 1024


def save_packed_apart(graph: Path, target: Path) -> None:
    """Call `save_packed`, in a child process if the graph is large.

    Raises:
        OSError: the target cannot be written, the graph is invalid, or packing takes too long.
    """
    # With `-P`, modules in the current folder are not imported.
    command = [sys.executable, "-P", "-m", __name__, str(graph), str(target)]
    try:
        # Weights may be in separate files beside the graph.
        if sum(path.stat().st_size for path in graph.parent.iterdir()) < _LEAST_APART:
            save_packed(graph, target)
        else:
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST)  # noqa: S603 - our own program
    except (OSError, subprocess.SubprocessError) as error:
        raise OSError(f"{graph}: cannot pack its weights: {error}") from error


def main() -> None:
    """Pack the graph that the command line names; exit with status 1 on failure."""
    graph, target = map(Path, sys.argv[1:])
    try:
        save_packed(graph, target)
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
