"""Detects mounted configuration files that were replaced. A container still sees the old files.

If a single file is mounted into a container, the container keeps the inode that the file had at the
container's start. `sed -i`, git and most editors replace a file by a new file with another inode.
The container never sees the new file.
"""

from pathlib import Path

from sluicegate.gateway.errors import ConfigurationError

_MOUNTS = Path("/proc/self/mountinfo")
_PLACE = 4


def check_mounts(folder: Path) -> None:
    """Refuse `folder` if a mounted file in it was replaced outside the container.

    Raises:
        ConfigurationError: a file was replaced after it had been mounted.
    """
    for path in mounted_files(folder):
        if not path.stat().st_nlink:
            raise ConfigurationError(
                "the file was replaced on the host, but this container still has the old file;"
                " restart the container, and mount the folder in place of the file",
                file=str(path),
            )


def mounted_files(folder: Path, mounts: Path = _MOUNTS) -> list[Path]:
    """Return the files in `folder` that are mount points, or an empty list if that is unknown."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return []
    root = folder.absolute()
    places = {Path(_unescaped(line.split()[_PLACE])) for line in lines}
    return sorted(place for place in places if place.parent == root and place.is_file())


def _unescaped(place: str) -> str:
    """Decode the octal escapes that the kernel writes for spaces and backslashes."""
    for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        place = place.replace(octal, character)
    return place
