"""Detects configuration files that were replaced behind a container's mount of a single file.

A mount of a single file keeps the inode from the start of the container. `sed -i`, git and most
editors write a new file in its place, which the container never sees.
"""

from pathlib import Path

from gateway.errors import ConfigurationError

_MOUNTS = Path("/proc/self/mountinfo")
_PLACE = 4


def check_mounts(folder: Path) -> None:
    """Refuse `folder` if a file in it was replaced behind its mount.

    Raises:
        ConfigurationError: a file was replaced after it was mounted.
    """
    for path in mounted_files(folder):
        if not path.stat().st_nlink:
            raise ConfigurationError(
                "the file was replaced on the host, but this container still has the old file;"
                " restart the container, and mount the folder in place of the file",
                file=str(path),
            )


def mounted_files(folder: Path, mounts: Path = _MOUNTS) -> list[Path]:
    """Return the files directly in `folder` that are mount points; empty if unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return []
    root = folder.absolute()
    places = {Path(_unescaped(line.split()[_PLACE])) for line in lines}
    return sorted(place for place in places if place.parent == root and place.is_file())


def _unescaped(place: str) -> str:
    """Decode the kernel's octal escapes of blanks and backslashes."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(octal, character)
    return place
