"""Frames that others send."""

import msgspec
import pytest

from sluicegate.backends.pipelines.words import split_schema_words
from sluicegate.wire.protocol import (
    Call,
    CallItem,
    Done,
    EntitiesParameters,
    Failed,
    FrameReader,
    Report,
    RowLimits,
    Task,
    encode_frame,
    most_entity_windows,
)

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
    with pytest.raises(msgspec.DecodeError, match="too large"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


def test_frames_are_found_whatever_the_chunks() -> None:
    failed = Failed(index=1, status=503, code="overloaded", detail="d\u00e9", retryable=True)
    content = encode_frame(failed) + encode_frame(Report(queued_rows=3))
    reader = FrameReader()

    frames = [frame for place in range(len(content)) for frame in reader.feed(content[place:][:1])]

    assert frames == [failed, Report(queued_rows=3)]


def test_calls_and_answers_of_the_version_before_are_understood() -> None:
    """Fields that came later are left out by older programs, and ignored by them."""
    call = Call(
        model="m",
        revision="r",
        profile="fp32",
        task=Task.EMBED,
        parameters=b"",
        items=[CallItem(body=b"", remaining=1.0, scope="s")],
    )
    done = Done(index=0, result=b"{}", rows=1, tokens=2)
    older_call = msgspec.msgpack.decode(msgspec.msgpack.encode(call))
    older_done = msgspec.msgpack.decode(msgspec.msgpack.encode(done))
    del older_call["atomic"], older_call["truncate"]
    assert not older_done.keys() & {"truncated_from", "arm", "shadow"}

    assert msgspec.convert(older_call, Call) == call
    assert msgspec.convert(older_done, Done) == done


class _OlderDone(msgspec.Struct, tag="done"):
    index: int
    result: bytes


def test_what_is_new_in_an_answer_is_ignored_by_older_programs() -> None:
    done = Done(index=0, result=b"{}", rows=1, tokens=2, truncated_from=300)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(done), type=_OlderDone).index == 0


def test_the_full_stop_of_gliner2_may_need_a_window() -> None:
    text, limits = "a " * 128, RowLimits(tokens=4096, words=128)
    _, words = split_schema_words(text.strip())

    found = most_entity_windows(text.strip(), EntitiesParameters(labels=["city"]), limits)

    assert len(words) == limits.words + 1
    assert found == 2


def test_relations_have_windows_of_their_own() -> None:
    text, limits = "a " * 300, RowLimits(tokens=4096, words=128)
    labels = most_entity_windows(text, EntitiesParameters(labels=["city"]), limits)
    relations = most_entity_windows(text, EntitiesParameters(relations=["knows"]), limits)

    both = EntitiesParameters(labels=["city"], relations=["knows"])

    assert most_entity_windows(text, both, limits) == labels + relations
    assert relations > 1
