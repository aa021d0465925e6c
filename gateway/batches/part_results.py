"""Keeps the results of a part in a temporary file until its last line is answered."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Final, NamedTuple

from sluicegate.gateway.batches.answering import Result
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.storage.free_space import check_free_space

_AT_ONCE: Final = 1 << 20


class _Place(NamedTuple):
    start: int
    size: int
    is_success: bool
    is_expired: bool


class PartResults:
    """Holds results by the numbers of their lines, in a file without a name in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[int, _Place] = {}
        self._end = 0
        self._lock = Lock()
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - see `close`
        except OSError as error:
            raise _away(error) from error

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def add(self, number: int, result: Result) -> None:
        """Add the result of a line. It blocks, and may be repeated.

        Raises:
            DependencyUnavailable: there is no room.
        """
        with self._lock:
            left = memoryview(result.line)
            try:
                check_free_space(self._folder)
                self._file.seek(self._end)
                while left:
                    left = left[self._file.write(left) :]
            except OSError as error:
                raise _away(error) from error
            self._places[number] = _Place(
                self._end, len(result.line), result.is_success, result.is_expired
            )
            self._end += len(result.line)

    @property
    def size(self) -> int:
        """The bytes of the results so far."""
        return self._end

    def counts(self) -> tuple[int, int, int]:
        """Return how many lines there are, how many are successes, and how many came too late."""
        places = self._places.values()
        return (
            len(places),
            sum(place.is_success for place in places),
            sum(place.is_expired for place in places),
        )

    def content(self, numbers: Iterable[int], *, is_success: bool) -> Iterator[bytes]:
        """Yield the results of the lines `numbers`, in order: successes only, or failures only."""
        for number in numbers:
            place = self._places.get(number)
            if place is None or place.is_success is not is_success:
                continue
            with self._lock:
                self._file.seek(place.start)
                left = place.size
                while left and (chunk := self._file.read(min(left, _AT_ONCE))):
                    left -= len(chunk)
                    yield chunk


def _away(error: OSError) -> DependencyUnavailable:
    return DependencyUnavailable(
        f"the data directory cannot be used ({error.strerror}): is there room on its disk?",
        retry_after=5.0,
    )
