"""Syncs folders to the disk."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

# The errors of network file systems that cannot sync a folder.
_UNSUPPORTED: Final = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}


def sync_folder(folder: Path, sync: Callable[[int], None] = os.fsync) -> None:
    """Sync a folder, so that new and renamed files in it survive a crash of the machine.

    Does nothing on a file system that cannot sync a folder.

    Raises:
        OSError: the folder cannot be opened or synced.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(file)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    finally:
        os.close(file)
