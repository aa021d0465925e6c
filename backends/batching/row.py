"""Defines a row, and the callers that wait for it."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from backends.errors import BackendError
from backends.telemetry.spans import Span
from backends.types import Encoding, FloatArray, OutputKind

# Scope, graph, output and ids. Scope first: no tenant learns what another asked.
RowKey = tuple[str, str, OutputKind, bytes]
Outcome = tuple["Row", "FloatArray | BackendError"]
_MISSING: Final[FloatArray] = np.empty(0, dtype=np.float32)


class RowWaiter:
    """Waits for the rows of one caller; calls `on_end` when the last has arrived or one has failed.

    It is called once, in the loop's thread, with the waiter and the error of the row that failed.
    `pending` holds those rows that it was placed at. Belongs to the loop's thread, but any thread
    may read `is_awaited`, which is false once it has ended or its caller has left.
    """

    __slots__ = (
        "deadline",
        "is_awaited",
        "missing",
        "on_end",
        "pending",
        "rows",
        "tokens",
        "values",
    )

    def __init__(
        self,
        size: int,
        *,
        deadline: float,
        # The waiter it is called with is of the class that its owner made of this one.
        on_end: Callable[[Any, BackendError | None], None],
    ) -> None:
        self.values = [_MISSING] * size
        self.missing = size
        self.deadline = deadline
        self.on_end = on_end
        self.is_awaited = True
        self.pending: list[Row] = []
        self.rows = 0
        self.tokens = 0

    def deliver(self, index: int, value: FloatArray, *, computed_tokens: int) -> None:
        """Put a row's value in its place; `computed_tokens` is 0 for a row cached or joined."""
        self.values[index] = value
        self.missing -= 1
        if computed_tokens:
            self.rows += 1
            self.tokens += computed_tokens
        if self.missing == 0 and self.is_awaited:
            self.is_awaited = False
            self.on_end(self, None)

    def fail(self, error: BackendError) -> None:
        """Fail the caller; its other rows then have no caller, unless shared."""
        if self.is_awaited:
            self.is_awaited = False
            self.on_end(self, error)

    def leave(self) -> "list[Row]":
        """Wait no more; return the rows that it was placed at.

        Its owner calls this at every end: rows and waiters that named each other for longer would
        be left to the garbage collector.
        """
        self.is_awaited = False
        pending, self.pending = self.pending, []
        return pending


class RequestWork(msgspec.Struct, kw_only=True, eq=False):
    """Tracks the reserved work of a request, whose rows run near each other.

    `reserved` is what is not queued yet, in predicted seconds. Written by the loop; worker threads
    may read it at any time.
    """

    reserved: float = 0.0
    items: int = 1
    is_late: bool = False


class Row(msgspec.Struct, kw_only=True, eq=False):
    """Holds one sequence on its way through a model.

    `due` is its first caller's deadline and orders the queue: later callers with clearly less time
    get a row of their own, unless this one runs. `work` is its predicted seconds, without a batch's
    fixed part. `deadline` is the latest of all callers'. `slower`
    is the row in flight for the same key that would run later. `flow`, `batch_class`, `kind` and
    `length` follow from the others.
    """

    encoding: Encoding
    key: RowKey
    deadline: float
    span: Span
    settle: Callable[["Row", FloatArray | BackendError], None]
    lane: str = "interactive"
    request: RequestWork | None = None
    slower: "Row | None" = None
    waiters: list[tuple[RowWaiter, int]] = []
    is_dequeued: bool = False
    is_expired: bool = False
    work: float = 0.0
    submitted: float = 0.0
    """When it was given to the queue."""
    due: float = 0.0
    length: int = 0
    kind: OutputKind = OutputKind.POOLED
    flow: tuple[str, str] = ("", "")
    batch_class: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        self.due, self.length, self.kind = self.deadline, len(self.encoding.ids), self.key[2]
        self.flow, self.batch_class = (self.lane, self.key[0]), (self.kind, self.lane)

    @property
    def is_awaited(self) -> bool:
        """Whether any caller still waits."""
        # `any` would cost twice as much, and every row is asked several times.
        for waiter, _ in self.waiters:  # noqa: SIM110
            if waiter.is_awaited:
                return True
        return False

    @property
    def is_live(self) -> bool:
        """Whether it will be answered as long as a caller waits."""
        return self.is_awaited and not self.is_expired

    def join(self, waiter: RowWaiter, index: int) -> bool:
        """Let another caller wait for this row, until its own deadline.

        Returns `False` when a worker thread dropped the row at that moment.
        """
        self.waiters.append((waiter, index))
        self.deadline = max(self.deadline, waiter.deadline)
        if self.is_expired:
            self.waiters.pop()
        return not self.is_expired

    def overtake(self, slower: "Row") -> None:
        """Take over the callers of the equal row that would run later."""
        self.waiters = slower.waiters + self.waiters
        self.deadline = max(self.deadline, slower.deadline)
        slower.waiters = []
        self.slower = None
