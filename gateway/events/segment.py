"""Defines the format of an event log's files. `log` writes the files, and `reader` reads them.

A log is a folder of segments `00000000.log`, `00000001.log` and so on. Each segment has a fixed
size, and zeros fill the space after its content. A segment consists of:

    header  64 bytes: magic, version, segment number, first sequence number, log id
    record  length, checksum, sequence number, then `length` bytes: a msgpack `RequestEvent`
    ...
    mark    in place of a length: the log continues in the next segment, or ends here

A length of zero means that no record is written there yet. The checksum covers the whole record,
and shows whether the record was incomplete when its process or machine died.
"""

import struct
from enum import Enum, auto
from typing import Final, NamedTuple
from zlib import crc32

MAGIC: Final = b"sgevents"
VERSION: Final = 1
HEADER: Final = struct.Struct("<8sHxxIQ40s")
RECORD: Final = struct.Struct("<IIQ")
CHECKSUM: Final = struct.Struct("<I")
CHECKSUM_OFFSET: Final = 4
MARK: Final = struct.Struct("<I")
CONTINUED: Final = 0xFFFFFFFF
FINISHED: Final = 0xFFFFFFFE
MAX_PAYLOAD_BYTES: Final = 64 * 1024
LOCK_NAME: Final = "writer.lock"
SUFFIX: Final = ".log"


class ScanEnd(Enum):
    """The reason why a scan ended."""

    LIMIT = auto()
    """The limit was reached, or the next record's sequence number is not consecutive."""
    CUT = auto()
    """The buffer ends within a record. The file may continue."""
    UNWRITTEN = auto()
    """Zeros follow: nothing is written here yet."""
    TORN = auto()
    """A record does not match its checksum. It is being written, or was never completed."""
    CONTINUED = auto()
    FINISHED = auto()


class Scan(NamedTuple):
    """Holds consecutive records: the first sequence number, the payloads, and the size in bytes."""

    first: int
    payloads: list[bytes]
    size: int
    stop: ScanEnd


def file_name(number: int) -> str:
    """Return the file name of segment `number`.

    Sorting the files by name also sorts them by number.
    """
    return f"{number:08d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of the segment with this file name, or `None` for any other file."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and stem.isdecimal() else None


def checksum(length: int, sequence: int, payload: bytes) -> int:
    """Return the checksum of a record."""
    return crc32(payload, crc32(RECORD.pack(length, 0, sequence)))


def scan(buffer: bytes, *, limit: int) -> Scan:
    """Read up to `limit` consecutive records from the start of `buffer`."""
    first, position = 0, 0
    payloads: list[bytes] = []
    while True:
        sequence, payload, stop = _record(buffer, position)
        if stop is not None:
            return Scan(first, payloads, position, stop)
        if not payloads:
            first = sequence
        if len(payloads) == limit or sequence != first + len(payloads):
            return Scan(first, payloads, position, ScanEnd.LIMIT)
        payloads.append(payload)
        position += RECORD.size + len(payload)


def _record(buffer: bytes, position: int) -> tuple[int, bytes, ScanEnd | None]:
    room = len(buffer) - position
    if room < MARK.size:
        return 0, b"", ScanEnd.CUT
    (mark,) = MARK.unpack_from(buffer, position)
    stop = {0: ScanEnd.UNWRITTEN, CONTINUED: ScanEnd.CONTINUED, FINISHED: ScanEnd.FINISHED}.get(
        mark
    )
    if stop is not None:
        return 0, b"", stop
    if mark > MAX_PAYLOAD_BYTES:
        return 0, b"", ScanEnd.TORN
    if room < RECORD.size + mark:
        return 0, b"", ScanEnd.CUT
    length, expected, sequence = RECORD.unpack_from(buffer, position)
    start = position + RECORD.size
    payload = buffer[start : start + length]
    if checksum(length, sequence, payload) != expected:
        return 0, b"", ScanEnd.TORN
    return sequence, payload, None
