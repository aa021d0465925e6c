"""Keeps room on disks for what the gateway itself must write: event log and ledger."""

import shutil
from pathlib import Path
from typing import Final

from gateway.errors import DependencyUnavailable

_SHARE: Final = 10
_MOST: Final = 4 << 30


def check_free_space(folder: Path) -> None:
    """Check that a tenth of the disk of `folder` is free, or 4 GiB.

    Raises:
        DependencyUnavailable: less is free.
        OSError: there is no such folder.
    """
    disk = shutil.disk_usage(folder)
    floor = min(disk.total // _SHARE, _MOST)
    if disk.free < floor:
        raise DependencyUnavailable(
            f"the disk of files has less than {floor >> 20} MiB free, which are for the gateway's"
            " own records: make room on it",
            retry_after=5.0,
        )
