"""Reads the secrets of a bulk job from files or the environment."""

import os
from pathlib import Path

from bulk.errors import BulkStopped

_SECRET = "SLUICEGATE_SECRET"  # noqa: S105 - the name of a variable
_KEY = "SLUICEGATE_ADMIN_KEY"


def read_secret(file: Path | None) -> bytes:
    """Return the gateways' secret, with which cache keys are computed.

    Raises:
        BulkStopped: the secret is missing, or its file cannot be read.
    """
    if file is None:
        secret = os.environ.get(_SECRET, "")
        if not secret:
            raise BulkStopped(
                f"--cache: set {_SECRET}, or give the file `secret` of the gateways' data"
                " directory as --cache-secret-file"
            )
        return secret.encode()
    try:
        return file.read_text(encoding="utf-8").strip().encode()
    except OSError as error:
        raise BulkStopped(f"--cache-secret-file: `{file}`: {error.strerror}") from None


def read_operator_key(file: Path | None) -> str:
    """Return the operator's key for reporting usage.

    Raises:
        BulkStopped: the key is missing, or its file cannot be read.
    """
    if file is None:
        key = os.environ.get(_KEY, "")
        if not key:
            raise BulkStopped(
                f"--usage-key-file is missing; give a file with an operator's key, or set {_KEY}"
            )
        return key
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BulkStopped(f"--usage-key-file: `{file}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BulkStopped(f"--usage-key-file: `{file}` is not a text file") from None


def silence_ray() -> None:
    """Disable Ray's usage statistics, unless the environment enables them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
