"""Makes file systems in files, mounts them, and fills them to the last block.

All functions need root.
"""

import os
import subprocess
from contextlib import suppress
from pathlib import Path


def make_file_system(image: Path, size_bytes: int) -> None:
    """Write an empty file system in which no blocks are reserved for root."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)  # noqa: S607


def mount(image: Path, place: Path) -> None:
    """Mount a file system."""
    subprocess.run(["mount", "-o", "loop", image, place], check=True)  # noqa: S607


def fill(path: Path) -> None:
    """Write a file until its disk has no free block."""
    size = 1 << 20
    with suppress(OSError), path.open("ab", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError:  # no room for a write of this size
                size //= 2
        os.fsync(file.fileno())
