"""Serves the operators' routes for dead letters: usage events that could not be counted."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter

from gateway.api.openapi_parts import Json, Operation
from gateway.errors import DependencyUnavailable, InvalidRequest, NotFound
from gateway.events.block import Block, MalformedBlock, Unpacker, from_fields
from gateway.ledger.dead_letters import DeadLetter
from gateway.ledger.ledger import Ledger
from gateway.ledger.recording import UnrecordableBlock
from gateway.ledger.types import EventBlock
from gateway.operations.operators import Operator, Role
from gateway.types import RequestEvent

MOST_SHOWN_BYTES = 4096
_MOST_EVENTS = 10
_NUMBER: Json = {"description": "The number of a dead letter.", "example": 7}
_operation = partial(
    Operation,
    tag="billing",
    errors=(NotFound, DependencyUnavailable),
    about={"number": _NUMBER},
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


class DeadLetterReplay:
    """Decodes dead letters and counts their events in the ledger. All calls block."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._unpacker = Unpacker()

    def page(self, *, limit: int, before: int | None) -> DeadLetterPage:
        """Return dead letters, the newest first."""
        letters = self._ledger.dead_letters
        return DeadLetterPage(
            entries=letters.entries(limit=limit, before=before), count=letters.count()
        )

    def show(self, number: int) -> DeadLetterContent:
        """Return a dead letter with its content.

        Raises:
            NotFound: the dead letter does not exist.
        """
        payload = self._ledger.dead_letters.payload(number)
        (letter,) = self._ledger.dead_letters.entries(limit=1, before=number + 1)
        block, events = _block_of(payload), _events_of(payload)
        count = block.size if block is not None else None if events is None else len(events)
        fields = msgspec.structs.asdict(letter)
        return DeadLetterContent(**fields, content=_text_of(payload, events or []), events=count)

    def replay(self, number: int, *, actor: str) -> ReplayResult:
        """Count the events of a dead letter that have not been counted, and remove the dead letter.

        Raises:
            NotFound: the dead letter does not exist.
            InvalidRequest: the dead letter cannot be decoded or recorded. It stays in the ledger.
        """
        payload = self._ledger.dead_letters.payload(number)
        block = _block_of(payload)
        if block is not None:
            counted = self._record(block)
            self._ledger.dead_letters.remove_replayed(number, counted=counted, actor=actor)
            return ReplayResult(number=number, counted=counted)
        events = _events_of(payload)
        if events is None:
            raise InvalidRequest(
                "this version cannot decode the dead letter as usage events: replay it after an"
                " upgrade, or discard it"
            )
        counted = self._ledger.dead_letters.count_events(number, events, actor=actor)
        return ReplayResult(number=number, counted=counted)

    def _record(self, block: Block) -> int:
        """Record a block. Its sequence numbers prevent that an event is counted twice."""
        try:
            unpacked = EventBlock(
                log_id=block.log_id,
                first=block.first,
                last=block.last,
                events=self._unpacker.events(block),
                lost=block.lost,
            )
            return self._ledger.recorder.record([unpacked]).counted
        except (MalformedBlock, UnrecordableBlock) as error:
            raise InvalidRequest(f"the dead letter cannot be recorded: {error}") from error


class DeadLetterController(Controller):
    """Lists, replays and discards dead letters."""

    path = "/admin/dead-letters"

    @get(
        "/",
        opt={"role": Role.VIEWER},
        operation=_operation(
            id="list_dead_letters",
            summary="Usage events that could not be counted",
            errors=(DependencyUnavailable,),
            about={
                "limit": {"description": "The most dead letters to return."},
                "before": {"description": "Return dead letters with numbers below this one."},
            },
        ),
    )
    async def list_all(
        self,
        dead_letters: NamedDependency[DeadLetterReplay],
        limit: Annotated[int, QueryParameter(ge=1, le=1000)] = 100,
        before: FromQuery[int | None] = None,
    ) -> DeadLetterPage:
        """Return dead letters, the newest first."""
        return await asyncio.to_thread(dead_letters.page, limit=limit, before=before)

    @get(
        "/{number:int}",
        opt={"role": Role.VIEWER},
        operation=_operation(id="get_dead_letter", summary="A dead letter, with its content"),
    )
    async def show(
        self, number: FromPath[int], dead_letters: NamedDependency[DeadLetterReplay]
    ) -> DeadLetterContent:
        """Return a dead letter with its content."""
        return await asyncio.to_thread(dead_letters.show, number)

    @post(
        "/{number:int}/replay",
        status_code=200,
        opt={"role": Role.BILLING},
        operation=_operation(
            id="replay_dead_letter", summary="Count the events of a dead letter, and remove it"
        ),
    )
    async def replay(
        self,
        number: FromPath[int],
        dead_letters: NamedDependency[DeadLetterReplay],
        operator: NamedDependency[Operator],
    ) -> ReplayResult:
        """Count the events of a dead letter, and remove it once usage has each event exactly once.

        Events that were counted before are skipped.
        """
        return await asyncio.to_thread(dead_letters.replay, number, actor=operator.name)

    @delete(
        "/{number:int}",
        status_code=200,
        opt={"role": Role.BILLING},
        operation=_operation(
            id="discard_dead_letter", summary="Remove a dead letter without counting it"
        ),
    )
    async def discard(
        self,
        number: FromPath[int],
        ledger: NamedDependency[Ledger],
        operator: NamedDependency[Operator],
    ) -> DeadLetter:
        """Remove a dead letter without counting it."""
        return await asyncio.to_thread(ledger.dead_letters.discard, number, actor=operator.name)


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
