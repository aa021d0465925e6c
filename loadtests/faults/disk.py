"""Mounts a file system that tests can fill, and whose power they can cut."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import msgspec

from loadtests.faults.topology import TopologyError
from loadtests.file_systems import fill, make_file_system, mount
from sluicegate.gateway.events.syncing import MARK_NAME, SyncedMark, read_mark
from testing.waiting import wait_until

_OTHER_BOOT = "the boot before the power cut"


class Disk:
    """An ext4 file system in a file in `folder`, mounted at `place` while entered. Needs root."""

    def __init__(self, folder: Path, place: Path, size_bytes: int) -> None:
        self._place = place
        self._image = folder / "disk.ext4"
        self._size = size_bytes
        self._filler = place / "filler"

    def __enter__(self) -> Self:
        if os.geteuid():
            raise TopologyError("a file system is mounted for this, which needs root")
        make_file_system(self._image, self._size)
        mount(self._image, self._place)
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Unmount the file system as soon as killed processes have closed their files."""
        command = ["umount", str(self._place)]
        wait_until(
            lambda: subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode == 0,
            what="nobody uses the disk",
        )

    def fill(self) -> None:
        """Fill the file system until no block is free."""
        fill(self._filler)

    def empty(self) -> None:
        """Free the space that `fill` took."""
        self._filler.unlink(missing_ok=True)

    def cut_power(self) -> None:
        """Discard data that was not synced, and mark the event logs as older than a reboot."""
        after = self._image.with_name("after.ext4")
        shutil.copyfile(self._image, after)
        self.__exit__()
        after.replace(self._image)
        mount(self._image, self._place)
        for path in self._place.glob(f"events/*/{MARK_NAME}"):
            mark = read_mark(path.parent)
            if mark is not None:
                other = SyncedMark(expected=mark.expected, boot=_OTHER_BOOT)
                path.write_bytes(msgspec.json.encode(other))
