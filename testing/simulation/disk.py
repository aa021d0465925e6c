"""The disk of a simulated machine: real files in a folder, with faults."""

import errno
import os
from pathlib import Path


class Disk:
    """Has the files of a machine, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fault = 0
        """The error of writes: 0, `errno.ENOSPC` or `errno.EIO`."""
        self.sync_seconds = 0.0
        """How long a sync takes."""
        folder.mkdir(parents=True, exist_ok=True)

    def check(self) -> None:
        """Raise the fault, if there is one."""
        if self.fault:
            raise OSError(self.fault, os.strerror(self.fault))


FULL = errno.ENOSPC
BROKEN = errno.EIO
