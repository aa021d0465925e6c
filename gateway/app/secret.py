"""Stores generated secrets in files of the data directory."""

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path

from sluicegate.gateway.settings import Settings


def secret_of(settings: Settings) -> bytes:
    """Return the secret for the keyed hash in cache keys.

    It comes from the settings. If they have none, it comes from a file in the data directory.
    """
    return (settings.secret or kept_secret(settings.data_dir / "secret")).encode()


def kept_secret(path: Path, make: Callable[[], str] = lambda: secrets.token_hex(32)) -> str:
    """Return the secret in the file at `path`, which only its owner can read.

    If there is no secret yet, `make` creates it. If several processes create it at the same time,
    all return the same secret.
    """
    with contextlib.suppress(FileNotFoundError):
        if text := path.read_text().strip():
            return text
        path.unlink()  # the file is empty, because the disk was full
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.touch(mode=0o600)
        fresh.write_text(make())
        try:
            path.hardlink_to(fresh)
        except FileExistsError:
            pass  # another process was first
        except OSError:  # the file system has no hard links
            fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path.read_text().strip()
