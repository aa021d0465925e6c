"""Stores the results of a job on disk, so that equal rows are computed once in bounded memory.

The results of one call are appended to a file together. An index maps keys to offsets. The index is
updated for many results at a time. After a crash, the results that it lacks are read from the file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple, Self

import msgspec
import xxhash

from sluicegate.bulk.result_index import Place, ResultIndex
from sluicegate.bulk.results import StoredResult
from sluicegate.bulk.usage import BulkUsage


class _Head(NamedTuple):
    """Precedes the results of one call: their size in bytes, their digest and their usage."""

    size: int
    digest: int
    computed: int
    hit: int
    rows: int
    tokens: int


_HEAD = Struct("<6Q")
# The lengths of a key and of its result, which precede both.
_SIZES = Struct("<II")


class ResultStore:
    """Stores results by key in a folder; survives `kill -9`.

    Only one process may use a folder. Results are synced to the disk when `keep` returns.
    """

    def __init__(self, folder: Path, *, most_recent: int = 65_536) -> None:
        """Open a folder. Up to `most_recent` keys (15 MB) are in memory before they are indexed."""
        folder.mkdir(parents=True, exist_ok=True)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(StoredResult).decode
        self._file = os.open(folder / "answers", os.O_RDWR | os.O_CREAT, 0o600)
        self._index = ResultIndex(folder, size=os.fstat(self._file).st_size)
        self._most_recent = most_recent
        self._recent: dict[bytes, Place] = {}
        self._end = 0
        self._usage = BulkUsage()
        self._recover()

    @staticmethod
    def is_in(folder: Path) -> bool:
        """Return whether a folder has results of a job."""
        return (folder / "answers").exists()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.close(self._file)

    def find(self, keys: Iterable[bytes]) -> dict[bytes, StoredResult]:
        """Return the stored results of `keys`."""
        places: list[tuple[Place, bytes]] = []
        others = []
        for key in keys:
            place = self._recent.get(key)
            if place is None:
                others.append(key)
            else:
                places.append((place, key))
        places += [(place, key) for key, place in self._index.find(others)]
        places.sort()
        found = {}
        for (first, length), key in places:
            content = os.pread(self._file, len(key) + length, first - len(key))
            # The index only has a part of the key, so compare the whole key.
            if content.startswith(key):
                found[key] = self._decode(memoryview(content)[len(key) :])
        return found

    def usage(self) -> BulkUsage:
        """Return the number of stored results, and their rows and tokens."""
        return self._usage

    def keep(self, results: Mapping[bytes, StoredResult]) -> None:
        """Store results of new keys atomically."""
        if not results:
            return
        encoded = {key: self._encode(result) for key, result in results.items()}
        pieces: list[bytes] = []
        for key, result in encoded.items():
            pieces += (_SIZES.pack(len(key), len(result)), key, result)
        body = b"".join(pieces)
        usage = _usage_of(results.values())
        head = _Head(len(body), xxhash.xxh3_64_intdigest(body), *msgspec.structs.astuple(usage))
        _write(self._file, _HEAD.pack(*head) + body, self._end)
        os.fsync(self._file)
        self._take(body, usage)

    def _take(self, body: bytes, usage: BulkUsage) -> None:
        """Take note of a block of results that was appended to the file."""
        start = self._end + _HEAD.size
        for key, first, length in _places(body):
            self._recent[key] = (start + first, length)
        self._end = start + len(body)
        self._usage += usage
        if len(self._recent) >= self._most_recent:
            self._follow()

    def _follow(self) -> None:
        """Add all recent results to the index."""
        self._index.add(self._recent, self._end)
        self._recent = {}

    def _recover(self) -> None:
        """Read the results that are not in the index, and truncate an incomplete block."""
        until = self._index.until
        size = os.fstat(self._file).st_size
        while (head := self._head()) is not None and self._end + _HEAD.size + head.size <= size:
            usage = BulkUsage(
                computed=head.computed, hit=head.hit, rows=head.rows, tokens=head.tokens
            )
            if self._end < until:
                self._end += _HEAD.size + head.size
                self._usage += usage
                continue
            body = os.pread(self._file, head.size, self._end + _HEAD.size)
            if xxhash.xxh3_64_intdigest(body) != head.digest:
                break
            self._take(body, usage)
        os.ftruncate(self._file, self._end)

    def _head(self) -> _Head | None:
        head = os.pread(self._file, _HEAD.size, self._end)
        return _Head(*_HEAD.unpack(head)) if len(head) == _HEAD.size else None


def _write(file: int, content: bytes, start: int) -> None:
    left = memoryview(content)
    while left:
        done = os.pwrite(file, left, start)
        left, start = left[done:], start + done


def _places(body: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield each key, the offset of its result, and the result's length."""
    at = 0
    while at < len(body):
        key_size, size = _SIZES.unpack_from(body, at)
        first = at + _SIZES.size + key_size
        yield body[at + _SIZES.size : first], first, size
        at = first + size


def _usage_of(results: Iterable[StoredResult]) -> BulkUsage:
    """Return the usage of results; failed items have none."""
    hit = sum([1 for each in results if each.is_shared and not each.code])
    own = [each for each in results if not (each.is_shared or each.code)]
    return BulkUsage(
        computed=len(own),
        hit=hit,
        rows=sum([each.rows for each in own]),
        tokens=sum([each.tokens for each in own]),
    )
