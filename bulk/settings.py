"""Reads what a bulk job takes from the environment."""

import os
from pathlib import Path

from bulk.errors import BulkStopped

_SECRET = "SLUICEGATE_SECRET"  # noqa: S105 - the name of a variable
_KEY = "SLUICEGATE_ADMIN_KEY"


def read_secret(file: Path | None) -> bytes:
    """Return the secret that gateways make cache keys with.

    Raises:
        BulkStopped: none is given, or its file cannot be read.
    """
    if file is None:
        secret = os.environ.get(_SECRET, "")
        if not secret:
            raise BulkStopped(
                f"--cache: set {_SECRET}, or name the file `secret` of the gateways' data"
                " directory by --cache-secret-file"
            )
        return secret.encode()
    try:
        return file.read_text(encoding="utf-8").strip().encode()
    except OSError as error:
        raise BulkStopped(f"--cache-secret-file: `{file}`: {error.strerror}") from None


def read_operator_key(file: Path | None) -> str:
    """Return the key by which the operators' listener knows who reports usage.

    Raises:
        BulkStopped: none is given, or its file cannot be read.
    """
    if file is None:
        key = os.environ.get(_KEY, "")
        if not key:
            raise BulkStopped(
                f"--usage-key-file: name the file of an operator's key, or set {_KEY}"
            )
        return key
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BulkStopped(f"--usage-key-file: `{file}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BulkStopped(f"--usage-key-file: `{file}` holds no text") from None


def silence_ray() -> None:
    """Have Ray not report its use to its makers, unless whoever runs it wants that."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
