"""What a batcher has done and how fast it is."""

import threading

from backends.types import QueueStatistics

# Speed is measured over about this many seconds of work, so that it follows a changed load.
_MEMORY = 5.0


class Meter:
    """Counts batches. Its speeds are of a busy device: an idle one keeps the last it showed."""

    def __init__(self, *, lanes: int) -> None:
        self._lanes = lanes
        self._lock = threading.Lock()
        self._batches = self._rows = self._tokens = self._padded = self._failed = 0
        self._busy = 0.0
        self._recent_rows = self._recent_tokens = self._recent_busy = 0.0

    def count(self, *, rows: int, tokens: int, padded_tokens: int, took: float) -> None:
        """Count a batch that a lane ran for `took`."""
        with self._lock:
            self._batches += 1
            self._rows += rows
            self._tokens += tokens
            self._padded += padded_tokens
            self._busy += took
            fade = max(0.0, 1.0 - took / (_MEMORY * self._lanes))
            self._recent_rows = self._recent_rows * fade + rows
            self._recent_tokens = self._recent_tokens * fade + tokens
            self._recent_busy = self._recent_busy * fade + took

    def count_failed(self, rows: int) -> None:
        """Count rows that could not be computed."""
        with self._lock:
            self._failed += rows

    def statistics(
        self, *, queued_rows: int, queued_tokens: int, skipped: int, expired: int, refused: int
    ) -> QueueStatistics:
        """Return the counts, with those the queue keeps."""
        with self._lock:
            scale = self._lanes / self._recent_busy if self._recent_busy else 0.0
            return QueueStatistics(
                queued_rows=queued_rows,
                queued_tokens=queued_tokens,
                batches=self._batches,
                rows=self._rows,
                tokens=self._tokens,
                padded_tokens=self._padded,
                failed_rows=self._failed,
                skipped_rows=skipped,
                expired_rows=expired,
                refused_rows=refused,
                busy=self._busy,
                rows_per_second=self._recent_rows * scale,
                tokens_per_second=self._recent_tokens * scale,
            )
