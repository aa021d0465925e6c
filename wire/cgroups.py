"""Finds the folders of the cgroups that limit this process."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ESCAPED = re.compile(r"\\([0-7]{3})")


def cgroup_folders(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Yield the version and the folder of each cgroup of this process, and of each parent group.

    Of cgroups version 1, only the groups of `controller` are included. `root` is the folder that
    contains `/proc` and `/sys`.
    """
    try:
        own, mounts = _lines(root / "proc/self/cgroup"), _lines(root / "proc/self/mountinfo")
    except OSError:
        return  # no cgroups
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own)}
    for mount in mounts:
        # In proc(5), field 4 is the mounted cgroup and field 5 the mount point. The type of the
        # file system follows the hyphen.
        before, _, after = mount.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mounted, point = map(_plain, before.split(" ")[3:5])
        for controllers, path in paths.items():
            if kind == "cgroup2" and not controllers:
                version = 2
            elif (
                kind == "cgroup"
                and controller in controllers.split(",")
                and controller in options.split(",")
            ):
                version = 1
            else:
                continue
            for folder in _folders(root / point.lstrip("/"), mounted, path):
                yield version, folder


def _lines(file: Path) -> list[str]:
    # Not `splitlines`: the kernel escapes a newline in a name, but no other character that
    # `splitlines` takes for the end of a line.
    return [line for line in os.fsdecode(file.read_bytes()).split("\n") if line]


def _folders(point: Path, mounted: str, path: str) -> Iterator[Path]:
    """Yield the folders of the cgroup `path` and of its parents, as far as they are visible.

    A container may see its own cgroup as the root of all cgroups. Or it may see its cgroup's path
    on the host, although only its own cgroup is mounted.
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


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
