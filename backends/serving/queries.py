"""Answers a call whose algorithm is a `QueryAlgorithm`, without a coroutine for each item."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import accumulate

from sluicegate.backends.algorithms.base import QueryAlgorithm
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.batching.row import RowWaiter
from sluicegate.backends.errors import BackendError
from sluicegate.backends.pipelines.ask import encode_result
from sluicegate.backends.pipelines.encoder import PreparedQuery
from sluicegate.backends.serving.items import ItemAnswerer, Outcome
from sluicegate.backends.telemetry.spans import NO_SPAN, Span
from sluicegate.backends.types import Encoding, OutputKind, RowInput
from sluicegate.wire.protocol import CallItem, Failed

# The maximum number of items of a call in progress, so that one call cannot fill the queue.
ITEMS_AT_ONCE = 256
# At most this many bytes of items are tokenized together. So the rows of the first items run while
# the next items are tokenized, and little work is wasted if the caller disconnects.
_READ_AT_ONCE = 128 * 1024


class _OpenItem(RowWaiter):
    """Waits for the rows of an item; `until` is its deadline as a time of the event loop."""

    __slots__ = ("caller", "index", "prepared", "until", "waiting")

    def __init__(
        self,
        index: int,
        caller: RowCaller,
        prepared: PreparedQuery,
        *,
        until: float,
        on_end: Callable[["_OpenItem", BackendError | None], None],
    ) -> None:
        super().__init__(len(prepared.texts), deadline=caller.deadline, on_end=on_end)
        self.index = index
        self.caller = caller
        self.prepared = prepared
        self.until = until
        self.waiting: asyncio.Task[None] | None = None
        """The task that waits for room in the queue, if any."""


class QueryCall:
    """Answers the items of one call; calls `on_ready` when there are outcomes to `take`.

    The owner first calls `begin`, and calls `begin` again after each `take`, until `is_over` is
    true. Then the owner calls `close`.
    """

    def __init__(
        self, answerer: ItemAnswerer, algorithm: QueryAlgorithm, on_ready: Callable[[], None]
    ) -> None:
        self._answerer = answerer
        self._algorithm = algorithm
        self._on_ready = on_ready
        self._pipeline = pipeline = answerer.pipelines[algorithm.model]
        self._items = answerer.call.items
        self._tokenizer, self._rows = pipeline.encoder.tokenizer, pipeline.encoder.rows
        self._open: dict[int, _OpenItem] = {}
        self._ready: list[Outcome] = []
        self._begun = 0
        self._left = len(self._items)
        """The number of outcomes that are not taken yet."""
        self.has_failed = False
        """Whether an item failed."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        """The task that waits for the tokenizer's threads, if any."""

    @property
    def is_ready(self) -> bool:
        """Whether all remaining outcomes are ready to be taken."""
        return len(self._ready) == self._left

    @property
    def is_over(self) -> bool:
        """Whether all outcomes are taken."""
        return not self._left

    def take(self) -> list[Outcome]:
        """Return and remove the outcomes that are ready."""
        outcomes, self._ready = self._ready, []
        self._left -= len(outcomes)
        return outcomes

    def begin(self) -> None:
        """Begin the next items of the call.

        At most 256 items are in progress. One call of this method begins at most 128 KiB of items,
        or one larger item.
        """
        first, room = self._begun, ITEMS_AT_ONCE - len(self._open)
        if room and first < len(self._items) and self._reading is None:
            items = self._items[first : first + room]
            reached = accumulate([len(item.body) for item in items])
            items = items[: max(1, sum([size <= _READ_AT_ONCE for size in reached]))]
            self._begun += len(items)
            self._begin(first, items)

    def _begin(self, first: int, items: Sequence[CallItem]) -> None:
        """Admit items, tokenize their texts together, and submit their rows."""
        now, opened = self._loop.time(), []
        for index, item in enumerate(items, first):
            found = self._admit(index, item, now)
            if found is not None:
                self._open[index] = found
                opened.append(found)
        if not opened:
            return
        self._expire_in_time()
        groups = [item.prepared.texts for item in opened]
        if not self._tokenizer.is_short(groups):
            self._reading = self._loop.create_task(self._read(opened, groups))
            return
        spans = _tokenization_spans(opened)
        answers = self._tokenizer.encode_short(groups)
        for span in spans:
            span.end()
        self._ask_all(opened, answers)

    async def _read(
        self, opened: Sequence[_OpenItem], groups: Sequence[Sequence[RowInput]]
    ) -> None:
        """Tokenize long texts in the tokenizer's threads, then submit their rows."""
        answers: Sequence[list[Encoding] | BackendError]
        spans = _tokenization_spans(opened)
        try:
            answers = await self._tokenizer.encode_each(groups)
        except Exception as error:  # noqa: BLE001 - without an error, the items would only time out
            for item in opened:
                self._fail(item, error)
            answers = ()
        finally:
            self._reading = None
            for span in spans:
                span.end()
        if answers:
            self._ask_all(opened, answers)
        self.begin()
        self._on_ready()  # the user may begin more items

    def _ask_all(
        self, opened: Sequence[_OpenItem], answers: Sequence[list[Encoding] | BackendError]
    ) -> None:
        """Submit the rows of items, and check once whether the queue has room for all of them."""
        read = [each for found in answers if isinstance(found, list) for each in found]
        has_room = self._rows.has_room_for_any(read)
        for one, encodings in zip(opened, answers, strict=True):
            if one.index not in self._open:
                continue  # its deadline has passed meanwhile
            if isinstance(encodings, BackendError):
                self._fail(one, encodings)
            else:
                self._ask(one, encodings, has_room=has_room)

    def _admit(self, index: int, item: CallItem, now: float) -> _OpenItem | None:
        answerer = self._answerer
        caller = answerer.begin(item)
        try:
            body, time_left = answerer.admit(index, item, caller)
            texts = self._algorithm.texts(body, answerer.parameters)
            prompts = self._algorithm.prompts(answerer.parameters)
            prepared = self._pipeline.encoder.prepare(texts, prompts)
        except Exception as error:  # noqa: BLE001 - a failing item must not affect other items
            self._add(answerer.failed(index, caller, error))
            return None
        return _OpenItem(index, caller, prepared, until=now + time_left, on_end=self._on_end)

    def _ask(self, item: _OpenItem, encodings: list[Encoding], *, has_room: bool) -> None:
        """Submit the rows of an item, or let the item wait for room."""
        rows, kind = self._rows, OutputKind.POOLED
        try:
            read = self._pipeline.encoder.check(item.prepared, encodings, item.caller)
            if has_room or rows.has_room(read, kind=kind, caller=item.caller):
                rows.begin(item, read, kind=kind, caller=item.caller)
            else:
                item.waiting = asyncio.create_task(self._ask_later(item, read))
        except Exception as error:  # noqa: BLE001 - a failing item must not affect other items
            self._fail(item, error)

    async def _ask_later(self, item: _OpenItem, encodings: Sequence[Encoding]) -> None:
        try:
            await self._rows.wait_for_room(encodings, kind=OutputKind.POOLED, caller=item.caller)
            self._rows.begin(item, encodings, kind=OutputKind.POOLED, caller=item.caller)
        except Exception as error:  # noqa: BLE001 - as in `_ask`
            self._fail(item, error)

    def _on_end(self, item: _OpenItem, error: BackendError | None) -> None:
        """Compute an item's result from its rows.

        If a row failed, end the item with the row's error.
        """
        if error is not None:
            self._fail(item, error)
            return
        answerer = self._answerer
        try:
            vectors = self._pipeline.finish(self._rows.collect(item, item.caller))
            answer = self._algorithm.answer(vectors, answerer.parameters)
            outcome = answerer.done(item.index, item.caller, answer, encode_result(answer))
        except Exception as failure:  # noqa: BLE001 - a failing item must not affect other items
            outcome = answerer.failed(item.index, item.caller, failure)
        del self._open[item.index]
        self._add(outcome)

    def _fail(self, item: _OpenItem, error: Exception) -> None:
        if self._abandon(item):
            self._add(self._answerer.failed(item.index, item.caller, error))

    def _abandon(self, item: _OpenItem) -> bool:
        """Close an item; return whether it was still open."""
        if item.waiting is not None:
            item.waiting.cancel()
        self._rows.abandon(item, item.caller)
        return self._open.pop(item.index, None) is not None

    def _add(self, outcome: Outcome) -> None:
        self._ready.append(outcome)
        has_failed = isinstance(outcome, Failed)
        if has_failed or len(self._ready) in {1, self._left}:
            self.has_failed = self.has_failed or has_failed
            self._on_ready()

    def _expire_in_time(self) -> None:
        """Set the timer to the earliest deadline of the open items."""
        if self._timer is not None:
            self._timer.cancel()
        first = min([item.until for item in self._open.values()])
        self._timer = self._loop.call_at(first, self._expire)

    def _expire(self) -> None:
        now = self._loop.time()
        for item in [item for item in self._open.values() if item.until <= now]:
            self._fail(item, self._answerer.too_late("the item's deadline has passed"))
        if self._open:
            self._expire_in_time()

    def close(self) -> None:
        """Cancel all items that have not ended."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        for item in list(self._open.values()):
            if self._abandon(item):
                self._answerer.cancelled(item.index, item.caller)


def _tokenization_spans(items: Sequence[_OpenItem]) -> list[Span]:
    return [
        item.caller.span.child("tokenization", {"texts": len(item.prepared.texts)})
        for item in items
        if item.caller.span is not NO_SPAN
    ]
