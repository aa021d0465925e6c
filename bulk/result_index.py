"""Indexes the results of a job by key, on disk and in bounded memory.

The index is a log-structured merge tree without deletions. Every few thousand entries are sorted
and written to a file, which is called a run. Runs of similar size are merged. A single tree would
be slower. Keys come in random order, so every few thousand entries would change nearly all of its
pages.
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
"""The offset of a result in the file, and its length in bytes."""

# The maximum entries of a merged run. A merge takes three times the memory of its result, which has
# 20 bytes per entry.
_MOST_MERGED = 1 << 21
# The head of a run: a digest of everything after it, and the number of entries.
_HEAD = Struct("<2Q")
_NAME = re.compile(r"index-([0-9a-f]{16})-([0-9a-f]{16})")
_NAME_BYTES = 8


class _Columns(NamedTuple):
    """Holds entries as columns: the last 8 bytes of keys as numbers, and the results' places."""

    numbers: NDArray[Any]
    starts: NDArray[Any]
    lengths: NDArray[Any]

    def in_order(self) -> "_Columns":
        """Return the entries in sorted order.

        If the entries are two sorted runs, this takes linear time.
        """
        order = np.argsort(self.numbers, kind="stable")
        return _Columns(*(column[order] for column in self))


class _Run(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds the entries for the results between the file offsets `begin` and `until`."""

    path: Path
    begin: int
    until: int
    columns: _Columns

    def __len__(self) -> int:
        return len(self.columns.numbers)

    @classmethod
    def read(cls, path: Path, begin: int, until: int) -> Self | None:
        """Read a file of sorted entries; return `None` if a crash has left the file incomplete.

        The columns are memory-mapped, so the system can drop them if memory is short.
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


class ResultIndex:
    """Maps keys to places: the offsets and lengths of results in a file.

    After a crash, the index may lack the last results of the file. The caller then adds them.
    """

    def __init__(self, folder: Path, *, size: int, most_merged: int = _MOST_MERGED) -> None:
        """Open the index of a file of results that has `size` bytes."""
        self._folder = folder
        self._most_merged = most_merged
        self._runs: list[_Run] = []
        found = [
            (int(match[1], 16), int(match[2], 16), path)
            for path in folder.iterdir()
            if (match := _NAME.fullmatch(path.name))
        ]
        # Take the longest run at each offset. A crash may have left the inputs of a merge.
        for begin, until, path in sorted(found, key=lambda each: (each[0], -each[1])):
            is_next = begin == self.until and until <= size
            run = _Run.read(path, begin, until) if is_next else None
            if run is None:
                path.unlink()
            else:
                self._runs.append(run)

    @property
    def until(self) -> int:
        """The offset of the first result that is not in the index."""
        return self._runs[-1].until if self._runs else 0

    def find(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, Place]]:
        """Yield each key with a place where its result may be.

        The index has only a part of each key. So the caller must compare the key with the key in
        the file.
        """
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
        """Add the places of all results between the end of the index and the offset `until`."""
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
        # Not synced. After a power failure, the digest tells whether the run is complete.
        temporary.write_bytes(head + body)
        path = temporary.rename(self._folder / f"index-{begin:016x}-{until:016x}")
        run = _Run.read(path, begin, until)
        if run is None:
            raise OSError(f"cannot read back `{path}`")
        return run


def _numbers(keys: Sequence[bytes]) -> NDArray[Any]:
    """Return the last 8 bytes of keys, which are digests, as numbers."""
    return np.frombuffer(b"".join([key[-_NAME_BYTES:] for key in keys]), "<u8")
