"""A row, and the tickets of those who wait for it."""

import asyncio
from collections.abc import Callable

from backends.errors import BackendError
from backends.telemetry.spans import Span
from backends.types import Encoding, FloatArray, OutputKind

# Scope, graph, output and ids. Scope first: no tenant learns what another asked (D9).
RowKey = tuple[str, str, str, bytes]
Outcome = tuple["Row", "FloatArray | BackendError"]


class RowWaiter:
    """One asker's rows: done when the last has arrived or one has failed.

    Belongs to the loop's thread, but any thread may read `is_awaited`.
    """

    __slots__ = ("deadline", "future", "missing", "rows", "tokens", "values")

    def __init__(self, size: int, *, deadline: float) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.values: list[FloatArray | None] = [None] * size
        self.missing = size
        self.deadline = deadline
        self.rows = 0
        self.tokens = 0

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still waits: a cancelled asker's future is done."""
        return not self.future.done()

    def deliver(self, index: int, value: FloatArray, *, computed_tokens: int) -> None:
        """Put a row's value in its place; `computed_tokens` is 0 for a row known or joined."""
        self.values[index] = value
        self.missing -= 1
        if computed_tokens:
            self.rows += 1
            self.tokens += computed_tokens
        if self.missing == 0 and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: BackendError) -> None:
        """Fail the asker; its other rows are then nobody's, unless shared."""
        if not self.future.done():
            self.future.set_exception(error)


class RequestWork:
    """A request whose rows run near each other: `reserved` is what of it is not queued yet.

    That is in predicted seconds. Written by the loop; lanes may read it at any time.
    """

    __slots__ = ("is_late", "items", "reserved")

    def __init__(self, reserved: float = 0.0, *, items: int = 1) -> None:
        self.reserved = reserved
        self.items = items
        self.is_late = False


class Row:
    """One sequence on its way through a model."""

    __slots__ = (
        "batch_class",
        "deadline",
        "due",
        "encoding",
        "flow",
        "is_dequeued",
        "is_expired",
        "key",
        "kind",
        "length",
        "request",
        "settle",
        "slower",
        "span",
        "waiters",
        "work",
    )

    def __init__(
        self,
        *,
        encoding: Encoding,
        kind: OutputKind,
        key: RowKey,
        deadline: float,
        span: Span,
        settle: Callable[["Row", FloatArray | BackendError], None],
        lane: str = "interactive",
        slower: "Row | None" = None,
        request: RequestWork | None = None,
    ) -> None:
        self.encoding = encoding
        self.kind = kind
        self.key = key
        self.length = len(encoding.ids)
        self.flow = (lane, key[0])
        self.batch_class = (kind, lane)
        # Whoever has the least time decides when it should run, who has the most until when it may.
        self.due = self.deadline = deadline
        self.work = 0.0
        self.request = request
        self.span = span
        self.settle = settle
        self.slower = slower
        self.is_dequeued = False
        self.is_expired = False
        self.waiters: list[tuple[RowWaiter, int]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether any asker is still there."""
        return any(waiter.is_awaited for waiter, _ in self.waiters)

    @property
    def is_live(self) -> bool:
        """Whether it will be answered as long as somebody waits."""
        return self.is_awaited and not self.is_expired

    def join(self, waiter: RowWaiter, index: int) -> bool:
        """Let another asker wait for this row, for as long as its own time lasts.

        `False` when a thread gave the row up at that very moment.
        """
        self.waiters.append((waiter, index))
        self.deadline = max(self.deadline, waiter.deadline)
        if self.is_expired:
            self.waiters.pop()
        return not self.is_expired

    def overtake(self) -> None:
        """Answer those who wait for the row that would run later; it is then nobody's."""
        if self.slower is not None:
            self.waiters = self.slower.waiters + self.waiters
            self.deadline = max(self.deadline, self.slower.deadline)
            self.slower.waiters = []
            self.slower = None
