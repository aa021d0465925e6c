"""Computes whether a key is active, expired or revoked."""

from datetime import datetime
from typing import Any


def key_state(key: dict[str, Any], now: datetime) -> str:
    """Return the state of a key. `key` describes the key, as the listener sent it."""
    if key["revoked"]:
        return "revoked"
    ends = key["expires"]
    return "expired" if ends and datetime.fromisoformat(ends) <= now else "active"
