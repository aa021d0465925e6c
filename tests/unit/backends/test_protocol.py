"""Frames that others send."""

import msgspec
import pytest

from backends.protocol import Failed, FrameReader, Report, encode_frame

NESTED = b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x82\xa4type\xa4done\xa1x" + NESTED, id="nested"),
        pytest.param(b"\x83\xa4type\xa6failed\xa5index\x00\xa4code\xa1\xff", id="no UTF-8"),
        pytest.param(b"\xc1", id="no msgpack"),
    ],
)
def test_what_is_no_frame_is_one_kind_of_error(body: bytes) -> None:
    content = len(body).to_bytes(4, "little") + body

    with pytest.raises(msgspec.DecodeError):
        list(FrameReader().feed(content))


def test_a_frame_of_impossible_length_is_refused_before_it_arrives() -> None:
    with pytest.raises(msgspec.DecodeError, match="over the limit"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


def test_frames_are_found_whatever_the_chunks() -> None:
    failed = Failed(index=1, status=503, code="overloaded", detail="d\u00e9", retryable=True)
    content = encode_frame(failed) + encode_frame(Report(queued_rows=3))
    reader = FrameReader()

    frames = [frame for place in range(len(content)) for frame in reader.feed(content[place:][:1])]

    assert frames == [failed, Report(queued_rows=3)]
