"""Counts spans on their way to a collector."""

import msgspec


class TracingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts spans that were exported, that failed to export, and that a full queue dropped."""

    exported: int = 0
    failed: int = 0
    dropped: int = 0
