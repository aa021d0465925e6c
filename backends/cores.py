"""Counts the processor cores that this process may use, by its affinity and cgroup quotas."""

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ESCAPED = re.compile(r"\\([0-7]{3})")


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many computing threads this process can keep busy.

    A container's quota (`cpus: 1.5`, `limits.cpu: 1500m`) limits the CPU time of all threads
    together, but not the number of visible cores. It is rounded up. `root` has `/proc` and `/sys`.
    """
    cores = len(os.sched_getaffinity(0))
    quota = min(_quotas(root), default=math.inf)
    return cores if quota >= cores else max(1, math.ceil(quota))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas, in cores, of all cgroups of this process."""
    try:
        own = (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return  # no cgroups
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own)}
    for mount in mounts:
        # Fields 4 and 5 of proc(5) are the mounted cgroup and its mount point. The file system type
        # follows the hyphen.
        before, _, after = mount.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mounted, point = map(_plain, before.split(" ")[3:5])
        for controllers, path in paths.items():
            if kind == "cgroup2" and not controllers:
                read = _quota_of_version_2
            elif (
                kind == "cgroup" and "cpu" in controllers.split(",") and "cpu" in options.split(",")
            ):
                read = _quota_of_version_1
            else:
                continue
            for folder in _folders(root / point.lstrip("/"), mounted, path):
                if (quota := read(folder)) is not None:
                    yield quota


def _folders(point: Path, mounted: str, path: str) -> Iterator[Path]:
    """Yield the visible folders of the cgroup `path` and of its parents.

    A container may see its cgroup as the root. It may also see the host's path, although only its
    own cgroup is mounted.
    """
    inner = PurePosixPath(path)
    if ".." in inner.parts:  # the process was moved out of its namespace's root
        inner = PurePosixPath("/")
    elif inner.is_relative_to(mounted):
        inner = PurePosixPath("/") / inner.relative_to(mounted)
    elif mounted != "/":
        inner = PurePosixPath("/")
    for each in (inner, *inner.parents):
        yield point / str(each).lstrip("/")


def _quota_of_version_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None  # the root cgroup has no such file


def _quota_of_version_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
