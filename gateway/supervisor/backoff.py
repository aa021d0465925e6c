"""Computes the delay before a crashed process is started again."""

FIRST = 0.1
LONGEST = 5.0
HEALTHY = 10.0


class Backoff:
    """Doubles from `FIRST` to `LONGEST`; a process that lived for `HEALTHY` seconds resets it."""

    def __init__(self) -> None:
        self._next = FIRST

    def after(self, lived: float) -> float:
        """Return the seconds to wait for a process that lived for `lived` seconds."""
        if lived >= HEALTHY:
            self._next = FIRST
        delay = self._next
        self._next = min(LONGEST, delay * 2)
        return delay
