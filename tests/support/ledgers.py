"""Opens a ledger for one test in a file of its own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.ledger.ledger import Ledger
from gateway.ledger.types import Batch, Recorded
from gateway.types import RequestEvent
from tests.support.events import START


class Clock:
    """Nanoseconds since the epoch that a test sets."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += int(seconds * 1_000_000_000)


@contextmanager
def open_ledger(directory: Path, clock: Clock | None = None) -> Iterator[Ledger]:
    """Open the SQLite ledger in `directory`."""
    with Ledger(ledger_url(directory), clock=clock or Clock()) as ledger:
        yield ledger


def ledger_url(directory: Path) -> str:
    """Return the URL of the SQLite ledger in `directory`."""
    return f"sqlite:///{directory / 'ledger.db'}"


def record(
    ledger: Ledger, log_id: str, high_water: int, events: Sequence[RequestEvent]
) -> Recorded:
    """Record events of a log; the last has the sequence number `high_water`."""
    first = high_water - len(events) + 1
    batch = Batch(log_id=log_id, first=first, last=high_water, events=events)
    return ledger.recorder.record([batch])
