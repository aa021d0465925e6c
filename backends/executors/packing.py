"""Packs the weights of a graph: `python -m backends.executors.packing GRAPH TARGET`, a process.

Packing leaves tens of MiB behind in the process that does it, for as long as that lives.
"""

import subprocess
import sys
from pathlib import Path

from backends.executors.provider import save_packed

# A graph of gigabytes packs in a minute.
_LONGEST = 300.0
# A smaller folder's graph leaves little behind, and is packed sooner than a child has started.
_LEAST_APART = 8 * 1024 * 1024


def save_packed_apart(graph: Path, target: Path) -> None:
    """Do what `save_packed` does, a large graph in a child process.

    Raises:
        OSError: it cannot be written, is no graph, or takes too long.
    """
    command = [sys.executable, "-m", __name__, str(graph), str(target)]
    try:
        # Weights may lie in files of their own beside the graph.
        if sum(path.stat().st_size for path in graph.parent.iterdir()) < _LEAST_APART:
            save_packed(graph, target)
        else:
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST)  # noqa: S603 - our own program
    except (OSError, subprocess.SubprocessError) as error:
        raise OSError(f"{graph}: its weights cannot be packed: {error}") from error


def main() -> None:
    """Pack what the command line names; exit with 1 where that fails."""
    graph, target = map(Path, sys.argv[1:])
    try:
        save_packed(graph, target)
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
