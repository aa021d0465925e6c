"""Finds where answers are kept, by runs of sorted numbers that are files, in bounded memory.

Answers come in no order of their keys, so an index that is one tree would write all of its pages
for each few thousand of them. Here each few thousand are sorted once and written as a run, and runs
of like size are merged: a log-structured merge tree, of which nothing is ever deleted.
"""

import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

Place = tuple[int, int]
"""Where an answer begins in the file, and its bytes."""

# Merges take three times the memory of their result, which has 20 bytes for each answer.
_MOST_MERGED = 1 << 21
# A digest of all that follows, and how many numbers, starts and lengths these are.
_HEAD = Struct("<2Q")
_NAME = re.compile(r"index-([0-9a-f]{16})-([0-9a-f]{16})")
_NAME_BYTES = 8


class _Columns(NamedTuple):
    """Holds the numbers that keys end with, in their order, and the places of the answers."""

    numbers: NDArray[Any]
    starts: NDArray[Any]
    lengths: NDArray[Any]

    def in_order(self) -> "_Columns":
        """Return them sorted; runs that are sorted already are merged in linear time."""
        order = np.argsort(self.numbers, kind="stable")
        return _Columns(*(column[order] for column in self))


class _Run(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the places of the answers from `begin` to `until` of the file."""

    path: Path
    begin: int
    until: int
    columns: _Columns

    def __len__(self) -> int:
        return len(self.columns.numbers)

    @classmethod
    def read(cls, path: Path, begin: int, until: int) -> Self | None:
        """Return the run of a file; `None` where a crash has left it incomplete.

        Its columns are mapped: the system reads what is needed, and drops it where memory is short.
        """
        with path.open("rb") as file:
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                return None
            digest, count = _HEAD.unpack(head)
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if xxhash.xxh3_64_intdigest(memoryview(content)[_HEAD.size :]) != digest:
            return None
        columns = []
        at = _HEAD.size
        for kind in ("<u8", "<u8", "<u4"):
            column = np.frombuffer(content, kind, count, at)
            at += column.nbytes
            columns.append(column)
        return cls(path=path, begin=begin, until=until, columns=_Columns(*columns))


class AnswerIndex:
    """Holds places by keys; what a crash takes of it is added anew from the file of answers."""

    def __init__(self, folder: Path, *, size: int, most_merged: int = _MOST_MERGED) -> None:
        """Open what is there of a file of answers that has `size` bytes."""
        self._folder = folder
        self._most_merged = most_merged
        self._runs: list[_Run] = []
        found = [
            (int(match[1], 16), int(match[2], 16), path)
            for path in folder.iterdir()
            if (match := _NAME.fullmatch(path.name))
        ]
        # Of those that begin at one place the longest first: a merge was not tidied up after.
        for begin, until, path in sorted(found, key=lambda each: (each[0], -each[1])):
            is_next = begin == self.until and until <= size
            run = _Run.read(path, begin, until) if is_next else None
            if run is None:
                path.unlink()
            else:
                self._runs.append(run)

    @property
    def until(self) -> int:
        """Where in the file the first answer begins that is not here."""
        return self._runs[-1].until if self._runs else 0

    def find(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, Place]]:
        """Yield the places of keys that may be here: the file says which key an answer has."""
        numbers = _numbers(keys)
        for run in self._runs:
            own = run.columns
            firsts = np.searchsorted(own.numbers, numbers)
            equal = own.numbers[np.minimum(firsts, len(run) - 1)] == numbers
            for place in np.flatnonzero(equal).tolist():
                at = int(firsts[place])
                while at < len(run) and own.numbers[at] == numbers[place]:
                    yield keys[place], (int(own.starts[at]), int(own.lengths[at]))
                    at += 1

    def add(self, places: Mapping[bytes, Place], until: int) -> None:
        """Add the places of all answers from the present end to `until`."""
        spans = np.array(list(places.values()), np.uint64)
        new = _Columns(_numbers(list(places)), spans[:, 0], spans[:, 1].astype("<u4"))
        self._runs.append(self._write(new.in_order(), self.until, until))
        while len(self._runs) > 1 and self._can_merge(*self._runs[-2:]):
            *self._runs, first, second = self._runs
            both = _Columns(*map(np.concatenate, zip(first.columns, second.columns, strict=True)))
            self._runs.append(self._write(both.in_order(), first.begin, second.until))
            first.path.unlink()
            second.path.unlink()

    def _can_merge(self, first: _Run, second: _Run) -> bool:
        return len(first) < 2 * len(second) and len(first) + len(second) <= self._most_merged

    def _write(self, columns: _Columns, begin: int, until: int) -> _Run:
        body = b"".join([column.tobytes() for column in columns])
        head = _HEAD.pack(xxhash.xxh3_64_intdigest(body), len(columns.numbers))
        temporary = self._folder / "index"
        # Not synced: the digest tells what the power took.
        temporary.write_bytes(head + body)
        path = temporary.rename(self._folder / f"index-{begin:016x}-{until:016x}")
        run = _Run.read(path, begin, until)
        if run is None:
            raise OSError(f"`{path}` does not hold what was written")
        return run


def _numbers(keys: Sequence[bytes]) -> NDArray[Any]:
    """Return the last bytes of keys, which are of a keyed digest, as numbers."""
    return np.frombuffer(b"".join([key[-_NAME_BYTES:] for key in keys]), "<u8")
