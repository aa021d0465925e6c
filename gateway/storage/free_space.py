"""Keeps disk space free for the event log and the ledger."""

import shutil
from pathlib import Path
from typing import Final

from sluicegate.gateway.errors import DependencyUnavailable

_SHARE: Final = 10
_MOST: Final = 4 << 30


def check_free_space(folder: Path) -> None:
    """Check that the disk of `folder` has enough free space.

    A tenth of the disk must be free, or 4 GiB if a tenth is more than that.

    Raises:
        DependencyUnavailable: less space is free.
        OSError: the folder does not exist.
    """
    disk = shutil.disk_usage(folder)
    floor = min(disk.total // _SHARE, _MOST)
    if disk.free < floor:
        raise DependencyUnavailable(
            f"the disk of the file storage has less than {floor >> 20} MiB free, which the gateway"
            " reserves for its own records: free some space",
            retry_after=5.0,
        )
