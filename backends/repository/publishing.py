"""Publishes revisions and files in a repository atomically."""

import errno
import filecmp
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

WEIGHTS = ".weights"
"""The end of the names of files with weights. Revisions may share these files as hard links."""
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)


def publish_revision(entry: Path, model: Path) -> Path:
    """Rename the folder `entry` to the next revision of `model`, and return its path.

    Files of weights that another revision of the repository also has become hard links.
    If another process publishes a revision of this number first, the next number is tried.

    Raises:
        OSError: the repository cannot be written.
    """
    model.mkdir(exist_ok=True)
    for weights in entry.glob(f"*{WEIGHTS}"):
        _link_equal(weights, model.parent.glob(f"*/*/{weights.name}"))
    while True:
        newest = max((int(p.name) for p in model.iterdir() if p.name.isdecimal()), default=0)
        try:
            return entry.rename(model / str(newest + 1))
        except OSError as error:
            if error.errno not in _TAKEN or not entry.is_dir():
                raise


def _link_equal(file: Path, others: Iterable[Path]) -> None:
    """Make a file a hard link to an equal one, if there is one and the disk has hard links."""
    for other in others:
        # A link has the permissions of the other file. The pattern also finds the file itself.
        with suppress(OSError):
            if (
                other != file
                and other.lstat().st_mode == file.stat().st_mode
                and filecmp.cmp(file, other, shallow=False)
            ):
                draft = file.with_name(f".{file.name}")
                draft.hardlink_to(other)
                draft.replace(file)
                return


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy if the disk has no hard links.

    Raises:
        OSError: the target cannot be written.
    """
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def replace_file(path: Path, content: bytes) -> bool:
    """Replace a file atomically; return `False` if the folder cannot be written.

    The temporary file's name contains the process id, because processes share the folder.
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
