"""Counts spans on their way to a collector."""

import msgspec


class TracingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts the spans that were exported, could not be exported, or did not fit into the queue."""

    exported: int = 0
    failed: int = 0
    dropped: int = 0
