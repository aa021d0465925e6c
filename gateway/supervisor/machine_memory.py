"""Determines how much memory this process and its children may use together."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")
_KIBIBYTE: Final = 1024


def available_memory(root: Path = _ROOT) -> int:
    """Return the bytes of the machine's memory or of the lowest cgroup limit; 0 if unknown.

    Supports cgroup v1 and v2. The limits of all parent groups apply, too.
    """
    return min((found for found in _limits(root) if found > 0), default=0)


def _limits(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                yield int(line.split()[1]) * _KIBIBYTE
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield from _group_limits(root / "sys/fs/cgroup", path, "memory.max")
            elif "memory" in controllers.split(","):
                folder = root / "sys/fs/cgroup/memory"
                yield from _group_limits(folder, path, "memory.limit_in_bytes")


def _group_limits(folder: Path, path: str, name: str) -> Iterator[int]:
    """Yield the limits of a group and its parents. In a container, its own group is the root."""
    own = Path(path.lstrip("/"))
    for group in (own, *own.parents):
        with suppress(OSError, ValueError):  # "max" is no limit
            yield int((folder / group / name).read_text())
