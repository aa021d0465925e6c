"""A folder is synced, unless its file system cannot sync folders."""

import errno
import os
from pathlib import Path

import pytest

from sluicegate.wire.folders import sync_folder


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


def test_a_file_system_that_cannot_sync_folders_is_accepted(tmp_path: Path) -> None:
    sync_folder(tmp_path, lambda _: fail(errno.EINVAL))


def test_a_disk_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(tmp_path, lambda _: fail(errno.EIO))
