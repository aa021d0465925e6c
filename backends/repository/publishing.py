"""Publishes a complete revision in a repository: as the number after the newest."""

import errno
from pathlib import Path

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def publish_revision(entry: Path, model: Path) -> Path:
    """Rename `entry` to the next revision of `model`, and return where it is.

    A revision that appears meanwhile keeps its place: this one gets the number after it.

    Raises:
        OSError: it cannot be written.
    """
    model.mkdir(exist_ok=True)
    while True:
        newest = max((int(p.name) for p in model.iterdir() if p.name.isdecimal()), default=0)
        try:
            return entry.rename(model / str(newest + 1))
        except OSError as error:
            if error.errno not in _TAKEN or not entry.is_dir():
                raise
