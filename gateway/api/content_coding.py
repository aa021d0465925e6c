"""Compresses and inflates bodies by gzip, and by zstd where its library is installed.

Requests may be in `deflate`, too, which is the zlib format (RFC 9110, 8.4.1.2).
"""

import asyncio
import contextlib
import zlib
from collections.abc import Sequence
from typing import Any, Final

from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedContentCoding

# What is understood both ways, the best first, and the errors of a body that is damaged.
CODINGS: tuple[str, ...] = ("gzip",)
_ERRORS: tuple[type[Exception], ...] = (zlib.error,)
with contextlib.suppress(ImportError):  # zstandard is optional
    import zstandard

    CODINGS, _ERRORS = ("zstd", "gzip"), (zlib.error, zstandard.ZstdError)
SMALLEST: Final = 16 * 1024
"""Bytes below which an answer is not compressed."""
VARY: Final = b"vary: Accept-Encoding\r\n"
"""The header line of answers that are as large, compressed or not."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_LARGEST_WINDOW: Final = 8 * 1024 * 1024
# A slice of gzip makes a thousand times its size at most, a block of zstd (128 KiB) is of 4 bytes.
_SLICES: Final = {"gzip": 2048, "deflate": 2048, "zstd": 128}
_MOST_MEMBERS: Final = 1000


def accepted_coding(value: bytes, codings: Sequence[str] = CODINGS) -> str:
    """Return which of `codings` the header `Accept-Encoding` prefers; empty if it accepts none."""
    if not value:
        return ""
    weights: dict[str, float] = {}
    for part in value.decode("latin-1").lower().split(","):
        name, _, parameter = part.partition(";")
        weights[name.strip()] = _weight(parameter)
    # Of equal weights the first wins, which is the best.
    best = max(codings, key=lambda coding: weights.get(coding, weights.get("*", 0.0)))
    return best if weights.get(best, weights.get("*", 0.0)) > 0 else ""


async def compressed(reply: HttpReply, coding: str) -> HttpReply:
    """Return `reply` compressed by `coding`, in a thread; as it is without one."""
    if not coding:
        return reply
    body = await asyncio.to_thread(_compress, reply.body, coding)
    lines = b"%bcontent-encoding: %b\r\n" % (reply.lines, coding.encode())
    return HttpReply(reply.status, lines, body)


def inflate(body: bytes, coding: str, *, limit: int) -> bytes:
    """Return `body` inflated; never more than a few MiB beyond `limit` bytes are made of it.

    Raises:
        UnsupportedContentCoding: the coding is not understood.
        PayloadTooLarge: it is longer.
        InvalidRequest: it is damaged.
    """
    if coding not in (*CODINGS, "x-gzip", "deflate"):
        raise UnsupportedContentCoding(
            f"Bodies may be compressed by {' or '.join(CODINGS)}; send it so, or as it is."
        )
    try:
        inflated = _inflated(body, coding.removeprefix("x-"), limit + 1)
    except _ERRORS as error:
        raise InvalidRequest(
            f"The body is damaged: it is not what `Content-Encoding: {coding}` says."
        ) from error
    if len(inflated) > limit:
        raise PayloadTooLarge(
            f"The body is larger than {limit} bytes when inflated; send the items in several"
            " requests."
        )
    return inflated


def _weight(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    try:
        return float(value) if name.strip() == "q" else 1.0
    except ValueError:
        return 0.0


def _compress(body: bytes, coding: str) -> bytes:
    if coding == "zstd":
        return bytes(zstandard.ZstdCompressor(level=1).compress(body))
    # Numbers hardly shrink more at higher levels, which take several times as long.
    compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def _inflater(coding: str) -> Any:
    """Return what inflates one member of a body, of zlib or of zstandard, which has no types."""
    if coding == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
    return zlib.decompressobj(_GZIP_WINDOW if coding == "gzip" else zlib.MAX_WBITS)


def _inflated(body: bytes, coding: str, most: int) -> bytes:
    """Return all members of `body` (frames, of zstd), up to a slice's worth beyond `most` bytes."""
    parts: list[bytes] = []
    size = start = members = 0
    inflater = None
    while start < len(body) and size < most:
        if inflater is None:
            inflater = _inflater(coding)
            members += 1
            if members > _MOST_MEMBERS:
                raise zlib.error("it has too many members")
        piece = body[start : start + _SLICES[coding]]
        parts.append(inflater.decompress(piece))
        size += len(parts[-1])
        start += len(piece)
        if inflater.eof:
            start -= len(inflater.unused_data)
            inflater = None
    if inflater is not None and size < most:
        raise zlib.error("it ends early")
    return b"".join(parts)
