"""Reads the input lines of batches, and writes their output lines; both are JSON Lines."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.ledger.batch_types import BatchFailure, RequestBatch

BATCH_EXPIRED = "batch_expired"
_LONGEST_ID = 512


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a batch: what to ask for, or why it cannot be asked; `number` counts from 1."""

    number: int
    custom_id: str | None = None
    body: bytes = b""
    failure: BatchFailure | None = None


class InputRefused(Exception):
    """Reports that no line of an input can be run."""

    def __init__(self, failure: BatchFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class LinePosition(NamedTuple):
    """Says where a line begins: its byte in the file, and its number."""

    start: int
    number: int


class LinePositions(msgspec.Struct, frozen=True, kw_only=True):
    """Says where the parts of an input begin: the byte and the number of their first lines.

    Blank lines are numbered and are otherwise none. `repeated` has the lines whose `custom_id` an
    earlier one has.
    """

    total: int
    starts: tuple[LinePosition, ...]
    repeated: frozenset[int]


class _InputLine(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: str
    url: str
    body: msgspec.Raw
    method: str | None = None


class _CustomId(msgspec.Struct, frozen=True, kw_only=True):
    custom_id: str


class _Response(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class _OutputLine(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    custom_id: str | None
    response: _Response | None
    error: BatchFailure | None


_decode = BodyDecoder(_InputLine)
_decode_id = BodyDecoder(_CustomId)
_encode = msgspec.json.Encoder().encode


def split_lines(chunks: Iterable[bytes], *, longest: int) -> Iterator[bytes]:
    """Yield the lines of a file with their ends.

    Raises:
        InputRefused: one is longer than `longest` bytes.
    """
    rest = b""
    number = 0
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            yield line + b"\n"
        if len(rest) > longest:
            message = f"The line has more than {longest} bytes."
            raise InputRefused(BatchFailure(code="line_too_long", message=message, line=number + 1))
    if rest:
        yield rest


def index_lines(lines: Iterable[bytes], *, part_lines: int, most: int) -> LinePositions:
    """Return where parts of `part_lines` lines begin.

    Raises:
        InputRefused: there is no line, or more than `most`.
    """
    starts: list[LinePosition] = []
    seen: set[str] = set()
    repeated: set[int] = set()
    total = offset = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            if total % part_lines == 0:
                starts.append(LinePosition(offset, number))
            total += 1
            custom_id = _custom_id(line)
            if custom_id in seen:
                repeated.add(number)
            elif custom_id is not None:
                seen.add(custom_id)
        offset += len(line)
        if total > most:
            message = f"The file has more than {most} lines: send several batches."
            raise InputRefused(BatchFailure(code="too_many_lines", message=message, line=number))
    if not total:
        raise InputRefused(BatchFailure(code="empty_file", message="The file has no lines."))
    return LinePositions(total=total, starts=tuple(starts), repeated=frozenset(repeated))


def read_lines(
    raw_lines: Iterable[bytes],
    *,
    endpoint: str,
    begin: LinePosition,
    repeated: frozenset[int],
    most: int,
    most_bytes: int,
) -> tuple[list[Line], LinePosition]:
    """Return up to `most` lines, and where they end; `raw_lines` has those from `begin` on.

    There are fewer once they have `most_bytes`, so that few are in memory, but one at least.
    """
    lines: list[Line] = []
    start, number = begin
    for raw in raw_lines:
        if raw.strip():
            lines.append(read_line(raw, number, endpoint, is_repeated=number in repeated))
        start, number = start + len(raw), number + 1
        if len(lines) == most or (lines and start - begin.start >= most_bytes):
            break
    return lines, LinePosition(start, number)


def read_line(raw: bytes, number: int, endpoint: str, *, is_repeated: bool = False) -> Line:
    """Return a line; one that cannot be run has a failure that says why."""
    try:
        line = _decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return _refused(raw, number, error)
    failure: BatchFailure | None = None
    if not 0 < len(line.custom_id) <= _LONGEST_ID:
        failure = _failure("invalid_custom_id", "`custom_id` must have 1 to 512 characters", number)
    elif is_repeated:
        failure = _failure(
            "duplicate_custom_id", f"`custom_id` `{line.custom_id}` is that of an earlier line",
            number,
        )  # fmt: skip
    elif (line.method or "POST").upper() != "POST":
        failure = _failure("invalid_method", "`method` must be `POST`", number, "method")
    elif line.url != endpoint:
        failure = _failure(
            "mismatched_url", f"`url` must be the batch's endpoint, `{endpoint}`", number, "url"
        )
    return Line(number=number, custom_id=line.custom_id, body=bytes(line.body), failure=failure)


def item_id(batch: RequestBatch, line: Line) -> str:
    """Return the id of the request of a line: the same whenever it is asked.

    It is never read as one of several consecutive ids, and fits an event's template (31 bytes).
    """
    return f"{batch.id}-{line.number:07d}"


def answer_line(batch: RequestBatch, line: Line, *, status: int, body: bytes, media: str) -> bytes:
    """Return the output line of a request that was answered, with an error or without."""
    if media.startswith("application/octet-stream"):
        body = _encode(body)  # in base64
    elif "json" not in media:
        body = _encode(body.decode(errors="replace"))
    elif b"\n" in body:
        body = msgspec.json.format(body, indent=-1)
    own = item_id(batch, line)
    response = _Response(status_code=status, request_id=own, body=msgspec.Raw(body))
    return _output(_OutputLine(id=own, custom_id=line.custom_id, response=response, error=None))


def failure_line(batch: RequestBatch, line: Line, failure: BatchFailure) -> bytes:
    """Return the output line of a request that was not made."""
    own = item_id(batch, line)
    return _output(_OutputLine(id=own, custom_id=line.custom_id, response=None, error=failure))


def expired_failure(line: Line) -> BatchFailure:
    """Return the failure of a line that was not answered in the batch's window."""
    message = "This request was not executed before the completion window of the batch ended."
    return BatchFailure(code=BATCH_EXPIRED, message=message, line=line.number)


def oversize_failure(line: Line) -> BatchFailure:
    """Return the failure of a line that is not run, as its batch has too large results already."""
    message = "The results of this batch are too large: send the rest of its lines as another one."
    return BatchFailure(code="output_too_large", message=message, line=line.number)


def _output(line: _OutputLine) -> bytes:
    return _encode(line) + b"\n"


def _custom_id(raw: bytes) -> str | None:
    try:
        return _decode_id(raw).custom_id
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _refused(raw: bytes, number: int, error: Exception) -> Line:
    custom_id = _custom_id(raw)
    if isinstance(error, msgspec.ValidationError):
        code = "invalid_line"
        if custom_id is None and "custom_id" in str(error):
            code = "missing_custom_id" if "missing" in str(error) else "invalid_custom_id"
        failure = _failure(code, f"The line does not fit: {error}", number)
    else:
        failure = _failure("invalid_json_line", f"The line is not valid JSON: {error}", number)
    return Line(number=number, custom_id=custom_id, failure=failure)


def _failure(code: str, message: str, number: int, param: str | None = None) -> BatchFailure:
    if param is None and "custom_id" in code:
        param = "custom_id"
    return BatchFailure(code=code, message=f"{message} (line {number}).", line=number, param=param)
