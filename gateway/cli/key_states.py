"""Computes whether a key is active, expired or revoked."""

from datetime import datetime
from typing import Any


def key_state(key: dict[str, Any], now: datetime) -> str:
    """Return the state of a key. `key` is the listener's description of the key."""
    if key["revoked"]:
        return "revoked"
    ends = key["expires"]
    return "expired" if ends and datetime.fromisoformat(ends) <= now else "active"
