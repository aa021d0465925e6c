"""Stores files in a folder, which several machines may share."""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicegate.gateway.errors import DependencyUnavailable, NotFound
from sluicegate.gateway.storage.base import Write
from sluicegate.gateway.storage.free_space import check_free_space
from sluicegate.wire.folders import sync_folder

_CHUNK: Final = 256 * 1024
_UNFINISHED: Final = ".unfinished-"
_LEFT_AFTER: Final = 86_400.0


class DiskStorage:
    """Implements `FileStorage` in the folder `root`.

    An object is written to a temporary file. The file is then synced and renamed. Some space on the
    disk is kept free, because the event log and the ledger may be on the same disk.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Write]:
        """Write an object; see `FileStorage`."""
        path = self._root / name
        aside = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        with _translated(name):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with aside.open("xb") as file:

                    def write(content: bytes) -> None:
                        check_free_space(path.parent)
                        file.write(content)

                    yield write
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(path)
                sync_folder(path.parent)
            finally:
                aside.unlink(missing_ok=True)

    def read(self, name: str, start: int = 0) -> Iterator[bytes]:
        """Yield the content; see `FileStorage`."""
        with _translated(name), (self._root / name).open("rb") as file:
            file.seek(start)
            while content := file.read(_CHUNK):
                yield content

    def delete(self, name: str) -> None:
        """Delete an object; see `FileStorage`."""
        with _translated(name):
            (self._root / name).unlink(missing_ok=True)

    def delete_below(self, folder: str) -> None:
        """Delete objects; see `FileStorage`."""
        with _translated(folder), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / folder)

    def remove_unfinished(self) -> None:
        """Delete temporary files that are older than a day. Killed processes have left them."""
        with _translated(""):
            for path in self._root.rglob(f"{_UNFINISHED}*"):
                if time.time_ns() / 1e9 - path.stat().st_mtime > _LEFT_AFTER:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"The content of `{name}` does not exist any more.") from error
    except OSError as error:
        raise DependencyUnavailable(
            f"the file storage cannot be used ({error.strerror}): check whether its disk is full",
            retry_after=5.0,
        ) from error
