"""Reads the secrets of a bulk job from files or the environment."""

import os
from pathlib import Path

from sluicegate.bulk.errors import BulkStopped

_SECRET = "SLUICEGATE_SECRET"  # noqa: S105 - the name of a variable
_KEY = "SLUICEGATE_ADMIN_KEY"


def read_secret(file: Path | None) -> bytes:
    """Return the gateways' secret, with which cache keys are computed.

    Raises:
        BulkStopped: the secret is missing, or its file cannot be read.
    """
    missing = (
        f"--cache: set {_SECRET}, or give the file `secret` of the gateways' data directory as "
        "--cache-secret-file"
    )
    return _read(file, _SECRET, "--cache-secret-file", missing).encode()


def read_operator_key(file: Path | None) -> str:
    """Return the operator's key for reporting usage.

    Raises:
        BulkStopped: the key is missing, or its file cannot be read.
    """
    missing = f"--usage-key-file is missing; give a file with an operator's key, or set {_KEY}"
    return _read(file, _KEY, "--usage-key-file", missing)


def _read(file: Path | None, variable: str, option: str, missing: str) -> str:
    if file is None:
        if not (value := os.environ.get(variable, "")):
            raise BulkStopped(missing)
        return value
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BulkStopped(f"{option}: `{file}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BulkStopped(f"{option}: `{file}` is not a text file") from None


def silence_ray() -> None:
    """Disable Ray's usage statistics, unless the environment enables them."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
