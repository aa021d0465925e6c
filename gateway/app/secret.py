"""Reads the secret of cache tags from the settings, or creates it once per data directory."""

import contextlib
import secrets
from pathlib import Path

from gateway.settings import Settings


def secret_of(settings: Settings) -> bytes:
    """Return the secret of the settings, else of the data directory, created when missing."""
    if settings.secret:
        return settings.secret.encode()
    path = settings.data_dir / "secret"
    if not path.exists():
        _make(path)
    return path.read_text().strip().encode()


def _make(path: Path) -> None:
    """Write a new secret; of several workers that start at once, the first one's stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    fresh.touch(mode=0o600)
    fresh.write_text(secrets.token_hex(32))
    try:
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()
