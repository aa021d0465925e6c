"""Bodies are compressed as callers accept, and inflated no further than allowed."""

import gzip
import tracemalloc
import zlib

import pytest

from sluicegate.gateway.api import content_coding
from sluicegate.gateway.api.content_coding import CODINGS, accepted_coding, compressed, inflate
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.errors import InvalidRequest, PayloadTooLarge, UnsupportedContentCoding

BODY = b'{"numbers": [0.125, 0.25]}' * 2_000


@pytest.mark.parametrize(
    ("value", "coding"),
    [
        (b"", ""),
        (b"gzip, deflate, br", "gzip"),
        (b"br", ""),
        (b"gzip;q=0", ""),
        (b"identity, *;q=0", ""),
        (b"*", CODINGS[0]),
        (b"deflate, GZIP;q=0.5", "gzip"),
        (b"gzip;q=what", ""),
    ],
)
def test_a_coding_is_one_that_the_caller_accepts(value: bytes, coding: str) -> None:
    assert accepted_coding(value) == coding


@pytest.mark.anyio
@pytest.mark.parametrize("coding", CODINGS)
async def test_what_is_compressed_is_inflated_to_the_same(coding: str) -> None:
    reply = await compressed(HttpReply(200, b"a: b\r\n", BODY), coding)

    assert b"content-encoding: %b\r\n" % coding.encode() in reply.lines
    assert len(reply.body) < len(BODY) / 10
    assert inflate(reply.body, coding, limit=len(BODY)) == BODY
    with pytest.raises(PayloadTooLarge):
        inflate(reply.body, coding, limit=len(BODY) - 1)


@pytest.mark.anyio
async def test_who_accepts_nothing_is_sent_it_as_it_is() -> None:
    reply = await compressed(HttpReply(200, b"", BODY), "")

    assert reply == HttpReply(200, b"", BODY)


@pytest.mark.parametrize(
    "body",
    [
        b"no gzip",
        gzip.compress(BODY)[:-9],
        gzip.compress(BODY)[:40] + b"damage" + gzip.compress(BODY)[46:],
        gzip.compress(BODY) + b"more",
    ],
    ids=["no gzip", "cut", "changed", "followed"],  # gzip holds the time
)
def test_a_damaged_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="damaged"):
        inflate(body, "gzip", limit=10**6)


def test_deflate_is_read_too() -> None:
    packed = zlib.compress(BODY)

    assert inflate(packed, "deflate", limit=len(BODY)) == BODY
    with pytest.raises(PayloadTooLarge):
        inflate(packed, "deflate", limit=len(BODY) - 1)
    for damaged in (packed[:-1], b"no zlib", gzip.compress(BODY)):
        with pytest.raises(InvalidRequest, match="damaged"):
            inflate(damaged, "deflate", limit=10**6)


def test_several_members_are_one_body() -> None:
    assert inflate(gzip.compress(b"a") + gzip.compress(b"b"), "x-gzip", limit=2) == b"ab"


def test_a_body_of_endless_members_is_refused_before_they_are_read() -> None:
    members = gzip.compress(b"") * 100_000

    with pytest.raises(InvalidRequest, match="damaged"):
        inflate(members, "gzip", limit=10**6)
    assert inflate(gzip.compress(b"a") * 900, "gzip", limit=10**6) == b"a" * 900


@pytest.mark.anyio
@pytest.mark.skipif("zstd" not in CODINGS, reason="its library is not installed")
async def test_a_zstd_body_that_is_cut_or_followed_is_refused() -> None:
    body = (await compressed(HttpReply(200, b"", BODY), "zstd")).body

    assert inflate(body + body, "zstd", limit=len(BODY) * 2) == BODY * 2
    for damaged in (body[:-1], body[:5], body + b"more", body + body[:-1]):
        with pytest.raises(InvalidRequest, match="damaged"):
            inflate(damaged, "zstd", limit=len(BODY) * 2)


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, gzip"])
def test_other_codings_are_refused_by_name(coding: str) -> None:
    with pytest.raises(UnsupportedContentCoding, match="gzip"):
        inflate(b"", coding, limit=10)


def test_without_its_library_zstd_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_coding, "CODINGS", ("gzip",))

    with pytest.raises(UnsupportedContentCoding):
        inflate(b"", "zstd", limit=10)


def test_a_bomb_is_not_inflated_whole() -> None:
    bomb = gzip.compress(bytes(200_000_000), 1)
    tracemalloc.start()

    with pytest.raises(PayloadTooLarge):
        inflate(bomb, "gzip", limit=1_000_000)

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
