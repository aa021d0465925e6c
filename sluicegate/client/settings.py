"""Reads the default address and key of a gateway from the environment."""

import os
from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8080"


def default_url() -> str:
    """Return `SLUICEGATE_URL`, or the address of `sluicegate up`."""
    return os.environ.get("SLUICEGATE_URL", DEFAULT_URL)


def default_key() -> str:
    """Return `SLUICEGATE_KEY`, or ""."""
    return os.environ.get("SLUICEGATE_KEY", "")
