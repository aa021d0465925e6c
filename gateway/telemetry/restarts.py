"""Counts restarts of processes in a file, which the metrics page reads."""

from collections import Counter
from pathlib import Path

import msgspec

FILE = "restarts.json"


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the number of restarts of processes of one `role` for one `reason`.

    The number begins at 0 when the supervisor starts. The reasons are `ended` (the process exited),
    `silent` (the process sent no heartbeat) and `memory` (the process used more memory than its
    limit).
    """

    role: str
    reason: str
    count: int


class RestartCounts:
    """Counts the restarts by one supervisor, and writes a file in `folder` after each restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, role: str, reason: str) -> None:
        """Count a restart. If the disk is full, the file keeps the old counts."""
        self._counts[role, reason] += 1
        restarts = [
            Restart(role=role, reason=reason, count=count)
            for (role, reason), count in sorted(self._counts.items())
        ]
        temporary = self._folder / f".{FILE}"
        try:
            temporary.write_bytes(msgspec.json.encode(restarts))
            temporary.replace(self._folder / FILE)
        except OSError:
            return

    def forget_former(self) -> None:
        """Delete the file of a previous supervisor."""
        (self._folder / FILE).unlink(missing_ok=True)


def read_restarts(folder: Path) -> list[Restart]:
    """Return the counts in `folder`, or an empty list if there is no file."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Restart])
    except (OSError, msgspec.DecodeError):
        return []
