"""Frames of HTTP/2 pass as they came, heads only whole, and none beyond the bounds."""

import pytest

from sluicegate.gateway.rpc.frames import BadFrames, ClientFrames, ServerFrames, goaway
from sluicegate.wire.http.request_head import MAX_FIELDS, MAX_HEAD_BYTES
from tests.support.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    call_head,
    frame,
    literal,
)

_CALL = frame(HEADERS, call_head("/a"), flags=END_HEADERS, stream=1)
_SENT = b"".join(
    [
        PREFACE,
        frame(SETTINGS, bytes(6)),
        frame(HEADERS, call_head("/a")[:20], stream=1),
        frame(CONTINUATION, call_head("/a")[20:], flags=END_HEADERS, stream=1),
        frame(DATA, b"x" * 300, stream=1),
        frame(PING, bytes(8)),
        frame(HEADERS, b"\x03" + bytes(5) + b"\x82" + bytes(3), flags=44, stream=3),
    ]
)


def opened() -> ClientFrames:
    frames = ClientFrames(now=0.0)
    assert frames.receive(PREFACE, 0.0) == PREFACE
    return frames


@pytest.mark.parametrize("size", [1, 2, 7, 25, len(_SENT)])
def test_what_comes_in_pieces_passes_unchanged(size: int) -> None:
    frames = ClientFrames(now=0.0)

    passed = [frames.receive(_SENT[at : at + size], 0.0) for at in range(0, len(_SENT), size)]

    assert b"".join(passed) == _SENT
    assert frames.waiting_since is None


def test_a_head_is_held_back_until_it_is_whole() -> None:
    frames = opened()
    first, last = frame(HEADERS, b"\x82", stream=1), frame(CONTINUATION, b"\x83", flags=END_HEADERS)

    assert frames.receive(frame(PING, bytes(8)) + first, 1.0) == frame(PING, bytes(8))
    assert frames.receive(last[:5], 2.0) == b""
    assert frames.waiting_since == 1.0
    assert frames.receive(last[5:], 3.0) == first + last
    assert frames.waiting_since is None


@pytest.mark.parametrize(
    "sent",
    [
        frame(HEADERS, literal("x", "a" * MAX_HEAD_BYTES), flags=END_HEADERS),
        frame(HEADERS, b"\x82") + frame(CONTINUATION) * (MAX_HEAD_BYTES // 9),
        frame(HEADERS, b"\x82") + frame(DATA, b"x"),
        frame(HEADERS, b"\x82") + frame(HEADERS, b"\x82"),
        frame(HEADERS, b"\x82") + frame(99),
        frame(CONTINUATION, b"\x82"),
        frame(HEADERS, literal("x", "a") * 1000, flags=END_HEADERS),
        frame(HEADERS, b"\x82" * 1000, flags=END_HEADERS),
        frame(HEADERS, b"\x20" * 1000, flags=END_HEADERS),
        frame(HEADERS, b"\xff" * 1000, flags=END_HEADERS),
        frame(HEADERS, b"\x00\x7f" + b"\xff" * 1000, flags=END_HEADERS),
    ],
    ids=[
        *("large", "empty continuations", "data", "second", "unknown", "no head"),
        *("literals", "indexed", "table sizes", "endless index", "endless length"),
    ],
)
def test_what_no_client_of_grpc_sends_ends_the_connection(sent: bytes) -> None:
    frames = opened()

    def receive() -> None:
        for second in range(100):  # beyond its credit, too
            frames.receive(sent if not second else b"", float(second))

    with pytest.raises(BadFrames):
        receive()


def test_the_head_of_a_long_frame_is_enough_to_refuse_it() -> None:
    frames = opened()

    with pytest.raises(BadFrames):
        frames.receive(frame(HEADERS, bytes(MAX_HEAD_BYTES))[:9], 0.0)


def test_a_head_may_have_what_a_head_of_http_may() -> None:
    fields = [(f"x-{number}", "a" * 400) for number in range(MAX_FIELDS)]
    head = frame(HEADERS, call_head("/a", fields), flags=END_HEADERS, stream=1)

    assert opened().receive(head, 0.0) == head


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"\x16"]
)
def test_other_protocols_are_refused_at_their_first_wrong_byte(sent: bytes) -> None:
    with pytest.raises(BadFrames, match="gRPC"):
        ClientFrames(now=0.0).receive(sent, 0.0)


@pytest.mark.parametrize(
    ("one", "most"),
    [
        (frame(PING, bytes(8)), 100),
        (frame(SETTINGS), 100),
        (frame(PRIORITY, bytes(5)), 100),
        (frame(DATA), 100),
        (_CALL, 200),
    ],
    ids=["ping", "settings", "priority", "empty data", "calls"],
)
def test_frames_beyond_the_credit_wait_for_time_to_pass(one: bytes, most: int) -> None:
    frames, now = opened(), 0.0

    passed = bytes(frames.receive(one * 5_000, now))
    at_once = len(passed) // len(one)
    while frames.pause:
        now += frames.pause
        passed += frames.receive(b"", now)

    assert at_once <= most
    assert now > 1.0
    assert passed == one * 5_000


def test_bytes_of_messages_cost_next_to_nothing() -> None:
    frames, message = opened(), frame(DATA, bytes(16_384), stream=1)

    passed = [frames.receive(message, 0.0) for _ in range(1_000)]

    assert b"".join(passed) == message * 1_000
    assert not frames.pause


@pytest.mark.parametrize("size", [1, 8, 9, 10, 1000])
def test_the_end_of_a_frame_is_known_however_it_is_cut(size: int) -> None:
    sent, frames, ends = _SENT[len(PREFACE) :], ServerFrames(), []
    for at in range(0, len(sent), size):
        frames.follow(sent[at : at + size])
        ends.append(frames.is_between)

    assert frames.is_between
    assert size > 1 or ends.count(True) == 6


def test_the_last_frame_says_why() -> None:
    last = goaway(BadFrames(BadFrames.CALM, "Send fewer."))

    assert last == frame(GOAWAY, b"\x7f\xff\xff\xff\x00\x00\x00\x0bSend fewer.")
