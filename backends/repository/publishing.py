"""Publishes revisions and files in a repository, complete before they are seen."""

import errno
import os
from contextlib import suppress
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


def replace_file(path: Path, content: bytes) -> bool:
    """Write a whole file at once; `False` where the folder cannot be written.

    Processes that share the folder each write under a name of their own first.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        return False
    return True
