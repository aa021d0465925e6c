"""Input lines say what is wrong with them; output lines are JSON, whatever was answered."""

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.batches.lines import (
    InputRefused,
    Line,
    LinePosition,
    answer_line,
    failure_line,
    index_lines,
    item_id,
    read_line,
    read_lines,
    split_lines,
)
from sluicegate.gateway.events.template import EventTemplate
from sluicegate.gateway.ledger.batch_types import BatchFailure, RequestBatch
from sluicegate.gateway.ledger.event_rows import rows_of_runs
from sluicegate.gateway.types import ID_DIGITS, RequestId
from tests.support.batches import request_line
from tests.support.events import make_event

BATCH = RequestBatch(
    id="batch_0123456789abcd",
    tenant="acme",
    key="key_1",
    endpoint="/v1/classify",
    input_file="file-1",
    created=0,
    expires=86_400,
    part_lines=2,
)


def decoded(line: bytes) -> dict[str, Any]:
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found: dict[str, Any] = msgspec.json.decode(line)
    return found


def code_of(raw: bytes) -> str:
    failure = read_line(raw, 7, "/v1/classify").failure
    assert failure is not None
    assert failure.line == 7
    assert "(line 7)" in failure.message
    return failure.code


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_lines_are_split_wherever_chunks_end(size: int) -> None:
    content = b"one\n\ntwo\r\nthree"
    chunks = [content[n : n + size] for n in range(0, len(content), size)]

    assert list(split_lines(chunks, longest=100)) == [b"one\n", b"\n", b"two\r\n", b"three"]


def test_a_line_that_is_too_long_is_named_before_it_is_read_whole() -> None:
    endless = (b"x" * 10 for _ in range(10**9))

    with pytest.raises(InputRefused) as refused:
        list(split_lines(endless, longest=50))

    assert (refused.value.failure.code, refused.value.failure.line) == ("line_too_long", 1)


def read(
    lines: Iterable[bytes],
    begin: LinePosition,
    repeated: frozenset[int] = frozenset(),
    *,
    most: int = 100,
    most_bytes: int = 1000,
) -> tuple[list[Line], LinePosition]:
    return read_lines(
        lines,
        endpoint=BATCH.endpoint,
        begin=begin,
        repeated=repeated,
        most=most,
        most_bytes=most_bytes,
    )


def test_no_more_than_some_bytes_of_a_file_are_read_at_a_time() -> None:
    """The generator counts what is taken of the file."""
    lines = [request_line(f"l-{number}", ["x" * 300]) for number in range(9)] + [b"\n"]
    taken: list[int] = []
    endless = (taken.append(len(line)) or line for line in lines)  # type: ignore[func-returns-value]

    found, end = read(endless, LinePosition(0, 1), most_bytes=1000)
    rest, last = read(lines[end.number - 1 :], end, most_bytes=10**6)
    none, over = read([], last)

    assert len(taken) == len(found) == 3
    assert [line.number for line in (*found, *rest)] == [*range(1, 10)]
    assert last == over == (sum(map(len, lines)), 11)
    assert none == []
    assert len(read(lines, LinePosition(0, 1), most=2)[0]) == 2


def test_parts_begin_at_lines_and_blank_ones_are_none() -> None:
    lines = [request_line("a", ["x"]), b"\n", request_line("b", ["x"]), request_line("a", ["x"])]

    found = index_lines(lines, part_lines=2, most=3)

    third = sum(map(len, lines[:3]))
    assert (found.total, found.starts) == (3, ((0, 1), (third, 4)))
    assert found.repeated == {4}
    (last,), end = read(lines[3:], found.starts[1], found.repeated)
    assert end == (sum(map(len, lines)), 5)
    assert (last.number, last.custom_id) == (4, "a")
    assert last.failure is not None
    assert last.failure.code == "duplicate_custom_id"


@pytest.mark.parametrize(
    ("lines", "code"),
    [([], "empty_file"), ([b"\n", b" \n"], "empty_file"), ([b"x\n"] * 4, "too_many_lines")],
)
def test_an_input_that_cannot_be_run_is_refused(lines: list[bytes], code: str) -> None:
    with pytest.raises(InputRefused) as refused:
        index_lines(lines, part_lines=2, most=3)

    assert refused.value.failure.code == code


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"{", "invalid_json_line"),
        (b"\xff", "invalid_json_line"),
        (
            b'{"custom_id":"a","url":"/v1/classify","body":' + b"[" * 100_000,
            "invalid_json_line",
        ),
        (b"[]", "invalid_line"),
        (b'{"custom_id": "a", "url": "/v1/classify"}', "invalid_line"),
        (b'{"url": "/v1/classify", "body": {}}', "missing_custom_id"),
        (b'{"custom_id": 1, "url": "/v1/classify", "body": {}}', "invalid_custom_id"),
        (request_line("", ["x"]), "invalid_custom_id"),
        (request_line("a" * 513, ["x"]), "invalid_custom_id"),
        (request_line("a", ["x"], method="GET"), "invalid_method"),
        (request_line("a", ["x"], url="/v1/embed"), "mismatched_url"),
    ],
)
def test_a_line_that_cannot_be_run_says_why(raw: bytes, code: str) -> None:
    assert code_of(raw) == code


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    line = read_line(b"\xef\xbb\xbf" + request_line("a", ["x"]), 1, "/v1/classify")

    assert (line.custom_id, line.failure) == ("a", None)


def test_a_null_is_a_field_left_out() -> None:
    line = read_line(
        b'{"custom_id":"a","url":"/v1/classify","method":null,"body":{}}', 1, "/v1/classify"
    )

    assert (line.custom_id, line.failure) == ("a", None)


@pytest.mark.parametrize(
    ("body", "media", "found"),
    [
        (b'{"a":1}', "application/json", {"a": 1}),
        (b'{\n "a": 1}', "application/problem+json", {"a": 1}),
        (b"plain\ntext", "text/plain", "plain\ntext"),
        (b"\x00\xff{}\n", "application/octet-stream", "AP97fQo="),
    ],
)
def test_an_answer_is_one_line_of_json(body: bytes, media: str, found: object) -> None:
    line = Line(number=3, custom_id="c", body=b"")

    written = decoded(answer_line(BATCH, line, status=200, body=body, media=media))

    assert written["custom_id"] == "c"
    assert written["error"] is None
    assert written["response"] == {
        "status_code": 200,
        "request_id": item_id(BATCH, line),
        "body": found,
    }


def test_a_failure_names_the_line() -> None:
    failure = BatchFailure(code="invalid_line", message="no", line=3)

    written = decoded(failure_line(BATCH, Line(number=3), failure))

    assert (written["custom_id"], written["response"]) == (None, None)
    assert written["error"] == {"code": "invalid_line", "message": "no", "line": 3, "param": None}


def test_ids_of_lines_are_recorded_each_by_itself_and_fit_a_template() -> None:
    ids = [item_id(BATCH, Line(number=number)) for number in (1, 2, 99_999, 100_000)]
    events = [msgspec.structs.replace(make_event(1), id=RequestId(id_)) for id_ in ids]

    assert len(rows_of_runs(events)) == len(ids)
    assert ID_DIGITS < len(f"{ids[-1]}f") <= 31
    EventTemplate(msgspec.structs.replace(events[-1], id=RequestId(f"{ids[-1]}f"), batch=1))
