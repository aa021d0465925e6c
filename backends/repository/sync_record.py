"""Records what `models sync` brought into a repository, and notices when that has changed.

The record is a hidden file of the repository, written last: a backend that sees it change reads the
repository again.
"""

from pathlib import Path
from typing import Annotated

import msgspec

FILE = ".synchronised.json"
Digest = Annotated[str, msgspec.Meta(pattern="^sha256:[0-9a-f]{64}$")]


class FileDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Says what a file holds: the digest of its content, and its size in bytes."""

    digest: Digest
    size: Annotated[int, msgspec.Meta(ge=0)]


class SyncRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the `digest` of the manifest that is in place, and every file that a sync brought.

    `kept` are those of these files that have left the source, `models` the patterns of what was
    asked for. The digest is empty while files are being put in place.
    """

    source: str = ""
    digest: str = ""
    files: dict[str, FileDigest] = {}
    kept: list[str] = []
    models: list[str] = []


def read_record(root: Path) -> SyncRecord:
    """Return the record of a repository; an empty one where there is none."""
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
        """Return whether a sync was completed since the last call; reads the status of one file."""
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
