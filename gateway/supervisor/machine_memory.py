"""Determines how much memory this process and its children may use together."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from wire.cgroups import cgroup_folders

_KIBIBYTE = 1024
_LIMIT_FILES = {1: "memory.limit_in_bytes", 2: "memory.max"}


def available_memory(root: Path = Path("/")) -> int:
    """Return how many bytes of memory may be used, or 0 if that is unknown.

    The result is the machine's memory or the lowest memory limit of the cgroups, whichever is less.
    """
    return min((found for found in _limits(root) if found > 0), default=0)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * _KIBIBYTE
    for version, folder in cgroup_folders("memory", root):
        with suppress(OSError, ValueError):  # the root has no such file; "max" is not a number
            yield int((folder / _LIMIT_FILES[version]).read_text())
