"""Counts spans on their way to a collector."""

import msgspec


class TracingStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts spans: taken by the collector, lost in sending, dropped as the queue was full."""

    exported: int = 0
    failed: int = 0
    dropped: int = 0
