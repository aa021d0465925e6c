"""Compresses and inflates bodies by gzip, and by zstd where its library is installed."""

import asyncio
import zlib
from importlib.util import find_spec
from typing import Final

from gateway.api.http import HttpReply
from gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedContentCoding

SMALLEST: Final = 16 * 1024
"""Bytes below which an answer is not compressed."""
VARY: Final = b"vary: Accept-Encoding\r\n"
"""The header line of answers that are as large, compressed or not."""
HAS_ZSTD: Final = find_spec("zstandard") is not None
CODINGS: Final = ("zstd", "gzip") if HAS_ZSTD else ("gzip",)
"""What is understood, the best first."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_LARGEST_WINDOW: Final = 8 * 1024 * 1024


def accepted_coding(value: bytes) -> str:
    """Return the coding that `Accept-Encoding` prefers of those understood; empty if it is none."""
    if not value:
        return ""
    weights: dict[str, float] = {}
    for part in value.decode("latin-1").lower().split(","):
        name, _, parameter = part.partition(";")
        weights[name.strip()] = _weight(parameter)
    # Of equal weights the first wins, which is the best.
    best = max(CODINGS, key=lambda coding: weights.get(coding, weights.get("*", 0.0)))
    return best if weights.get(best, weights.get("*", 0.0)) > 0 else ""


async def compressed(reply: HttpReply, coding: str) -> HttpReply:
    """Return `reply` compressed by `coding`, in a thread; as it is without one."""
    if not coding:
        return reply
    body = await asyncio.to_thread(_compress, reply.body, coding)
    lines = b"%bcontent-encoding: %b\r\n" % (reply.lines, coding.encode())
    return HttpReply(reply.status, lines, body)


def inflate(body: bytes, coding: str, *, limit: int) -> bytes:
    """Return `body` inflated; no more than `limit` bytes are ever made of it.

    Raises:
        UnsupportedContentCoding: the coding is not understood.
        PayloadTooLarge: it is longer.
        InvalidRequest: it is damaged.
    """
    if coding not in (*CODINGS, "x-gzip"):
        raise UnsupportedContentCoding(
            f"Bodies may be compressed by {' or '.join(CODINGS)}; send it so, or as it is."
        )
    try:
        inflated = (_from_zstd if coding == "zstd" else _from_gzip)(body, limit + 1)
    except _errors() as error:
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
        import zstandard  # noqa: PLC0415 - may be absent

        return bytes(zstandard.ZstdCompressor(level=1).compress(body))
    # Numbers hardly shrink more at higher levels, which take several times as long.
    compressor = zlib.compressobj(1, zlib.DEFLATED, _GZIP_WINDOW)
    return compressor.compress(body) + compressor.flush()


def _from_gzip(body: bytes, most: int) -> bytes:
    """Return at most so many bytes of all members of `body`."""
    parts: list[bytes] = []
    size = 0
    while body and size < most:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        parts.append(inflater.decompress(body, most - size))
        size += len(parts[-1])
        if not inflater.eof and size < most:
            raise zlib.error("it ends early")
        body = inflater.unused_data
    return b"".join(parts)


def _from_zstd(body: bytes, most: int) -> bytes:
    import zstandard  # noqa: PLC0415 - may be absent

    reader = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).stream_reader(
        body, read_across_frames=True
    )
    parts: list[bytes] = []
    size = 0
    while size < most and (part := reader.read(min(most - size, _LARGEST_WINDOW))):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _errors() -> tuple[type[Exception], ...]:
    if not HAS_ZSTD:
        return (zlib.error,)
    import zstandard  # noqa: PLC0415 - may be absent

    return (zlib.error, zstandard.ZstdError)
