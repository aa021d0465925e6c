"""Rotates the log files of running processes when they are large."""

import asyncio
import logging
import shutil
from pathlib import Path

MAX_BYTES = 16 * 1024 * 1024
_EVERY = 5.0
_log = logging.getLogger(__name__)


async def keep_small(folder: Path) -> None:
    """Rotate large logs in `folder` every five seconds, until cancelled."""
    while True:
        await asyncio.to_thread(rotate, folder, max_bytes=MAX_BYTES)
        await asyncio.sleep(_EVERY)


def rotate(folder: Path, *, max_bytes: int) -> None:
    """Copy each log larger than `max_bytes` to `NAME.log.1`, and empty the log. Blocks.

    The process that writes the log continues to write to the same file. Lines that it writes
    between the copy and the emptying are lost. If the disk is full, the log is emptied without a
    copy.
    """
    for path in folder.glob("*.log"):
        try:
            if path.stat().st_size <= max_bytes:
                continue
            _copy(path)
            with path.open("r+b") as log:
                log.truncate()
        except OSError as error:
            _log.warning(
                "a log file could not be rotated", extra={"file": path.name, "reason": str(error)}
            )


def _copy(path: Path) -> None:
    older = path.with_name(f"{path.name}.1")
    try:
        shutil.copyfile(path, older)
    except OSError as error:
        older.unlink(missing_ok=True)
        _log.warning(
            "a log file could not be copied; its lines are lost",
            extra={"file": path.name, "reason": str(error)},
        )
