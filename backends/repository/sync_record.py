"""Records what `models sync` has put into a repository.

The record is a hidden file of the repository, and a sync writes it last. When the file has changed,
a backend reads the repository again.
"""

from pathlib import Path
from typing import Annotated

import msgspec

FILE = ".synchronised.json"
Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class FileDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the digest and the size in bytes of a file's content."""

    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0)]


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds every file that `models sync` has put into a repository.

    `digest` is the digest of the manifest that was synced. It is empty while a sync replaces files.
    `kept` has the files that the source no longer has. `models` has the name patterns of the models
    to sync.
    """

    source: str = ""
    digest: str = ""
    files: dict[str, FileDigest] = {}
    kept: list[str] = []
    models: list[str] = []


def read_record(root: Path) -> SyncRecord:
    """Return the record of a repository; an empty record if there is none."""
    try:
        return msgspec.json.decode((root / FILE).read_bytes(), type=SyncRecord)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return SyncRecord()


class SyncWatch:
    """Tells whether a sync has changed a repository since the last call."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen = self._signature()

    def has_changed(self) -> bool:
        """Return whether a sync ended since the last call; each call reads one file's status."""
        found = self._signature()
        if found == self._seen or not read_record(self._root).digest:
            return False
        self._seen = found
        return True

    def _signature(self) -> tuple[int, int]:
        try:
            status = (self._root / FILE).stat()
        except OSError:
            return 0, 0
        return status.st_ino, status.st_mtime_ns
