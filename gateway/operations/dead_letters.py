"""Lists, replays and discards dead letters: usage events that could not be counted."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.events.block import Block, MalformedBlock, Unpacker, from_fields
from sluicegate.gateway.ledger.dead_letters import DeadLetter
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.recording import UnrecordableBlock
from sluicegate.gateway.ledger.types import EventBlock
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Family
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.types import RequestEvent

MOST_SHOWN_BYTES = 4096
_MOST_EVENTS = 10
_PATH = "/admin/dead-letters"
_LETTER = f"{_PATH}/{{number}}"
FAMILY = Family(
    "billing", about={"number": {"description": "The number of a dead letter.", "example": 7}}
)
_fields = msgspec.msgpack.Decoder(dict[bytes, bytes])
_event = msgspec.msgpack.Decoder(RequestEvent)
_events = msgspec.msgpack.Decoder(list[RequestEvent])


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters, newest first.

    To get the next page, send the last entry's number as `before`.
    """

    entries: list[DeadLetter]
    count: int
    """The number of all dead letters, not only of those on this page."""


class DeadLetterContent(DeadLetter, frozen=True, kw_only=True):
    """A dead letter with its content."""

    content: str
    """The content as JSON, or its first bytes in hexadecimal if it cannot be decoded."""
    events: int | None
    """The number of events in the content, or `null` if the content is not usage events."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay. The dead letter is removed."""

    number: int
    counted: int
    """The number of requests that were counted."""


@FAMILY.operation(
    f"GET {_PATH}",
    "Usage events that could not be counted",
    role=Role.VIEWER,
    about={
        "limit": {"description": "The most dead letters to return."},
        "before": {"description": "Return dead letters with numbers below this one."},
    },
)
async def list_dead_letters(
    context: OperationContext,
    *,
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100,
    before: int | None = None,
) -> DeadLetterPage:
    """Return dead letters, the newest first."""

    def read() -> DeadLetterPage:
        letters = context.ledger.dead_letters
        return DeadLetterPage(
            entries=letters.entries(limit=limit, before=before), count=letters.count()
        )

    return await asyncio.to_thread(read)


@FAMILY.operation(
    f"GET {_LETTER}",
    "A dead letter, with its content",
    role=Role.VIEWER,
    errors=(NotFound,),
)
async def get_dead_letter(context: OperationContext, number: int) -> DeadLetterContent:
    """Return a dead letter with its content."""
    return await asyncio.to_thread(_read, context.ledger, number)


@FAMILY.operation(
    f"POST {_LETTER}/replay",
    "Count the events of a dead letter, and remove it",
    role=Role.BILLING,
    errors=(NotFound,),
)
async def replay_dead_letter(context: OperationContext, number: int) -> ReplayResult:
    """Count the events of a dead letter, and remove it once usage has each event exactly once.

    Events that were counted before are skipped.
    """
    return await asyncio.to_thread(_replay, context.ledger, number, context.operator.name)


@FAMILY.operation(
    f"DELETE {_LETTER}",
    "Remove a dead letter without counting it",
    role=Role.BILLING,
    errors=(NotFound,),
)
async def discard_dead_letter(context: OperationContext, number: int) -> DeadLetter:
    """Remove a dead letter without counting it."""
    return await asyncio.to_thread(
        context.ledger.dead_letters.discard, number, actor=context.operator.name
    )


def _read(ledger: Ledger, number: int) -> DeadLetterContent:
    payload = ledger.dead_letters.payload(number)
    (letter,) = ledger.dead_letters.entries(limit=1, before=number + 1)
    block, events = _block_of(payload), _events_of(payload)
    count = block.size if block is not None else None if events is None else len(events)
    fields = msgspec.structs.asdict(letter)
    return DeadLetterContent(**fields, content=_text_of(payload, events or []), events=count)


def _replay(ledger: Ledger, number: int, actor: str) -> ReplayResult:
    """Count the events of a dead letter that have not been counted, and remove the dead letter.

    Raises:
        NotFound: the dead letter does not exist.
        InvalidRequest: the dead letter cannot be decoded or recorded. It stays in the ledger.
    """
    payload = ledger.dead_letters.payload(number)
    block = _block_of(payload)
    if block is not None:
        counted = _record(ledger, block)
        ledger.dead_letters.remove_replayed(number, counted=counted, actor=actor)
        return ReplayResult(number=number, counted=counted)
    events = _events_of(payload)
    if events is None:
        raise InvalidRequest(
            "this version cannot decode the dead letter as usage events: replay it after an"
            " upgrade, or discard it"
        )
    counted = ledger.dead_letters.count_events(number, events, actor=actor)
    return ReplayResult(number=number, counted=counted)


def _record(ledger: Ledger, block: Block) -> int:
    """Record a block. Its sequence numbers prevent that an event is counted twice."""
    try:
        unpacked = EventBlock(
            log_id=block.log_id,
            first=block.first,
            last=block.last,
            events=Unpacker().events(block),
            lost=block.lost,
        )
        return ledger.recorder.record([unpacked]).counted
    except (MalformedBlock, UnrecordableBlock) as error:
        raise InvalidRequest(f"the dead letter cannot be recorded: {error}") from error


def _block_of(payload: bytes) -> Block | None:
    """Decode an entry of the event stream; return `None` if the payload is not a block."""
    try:
        return from_fields(_fields.decode(payload))
    except (msgspec.DecodeError, MalformedBlock):
        return None


def _events_of(payload: bytes) -> list[RequestEvent] | None:
    """Decode one event or a list of events; return `None` if the payload is neither."""
    try:
        return [_event.decode(payload)]
    except msgspec.DecodeError:
        pass
    try:
        return _events.decode(payload)
    except msgspec.DecodeError:
        return None


def _text_of(payload: bytes, events: Sequence[RequestEvent]) -> str:
    """Format a dead letter as JSON, or as hexadecimal bytes if it cannot be decoded."""
    try:
        value: Any = msgspec.msgpack.decode(payload)  # Any: a payload may be anything
        if events:
            value = [msgspec.structs.asdict(event) for event in events[:_MOST_EVENTS]]
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        text = payload[: MOST_SHOWN_BYTES // 2].hex(" ", 4)
    return text if len(text) <= MOST_SHOWN_BYTES else f"{text[:MOST_SHOWN_BYTES]} ..."
