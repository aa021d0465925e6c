"""Defines a row, and the callers that wait for it."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from sluicegate.backends.errors import BackendError
from sluicegate.backends.telemetry.spans import Span
from sluicegate.backends.types import Encoding, FloatArray, OutputKind

# (scope, graph, output, token ids). The scope keeps tenants from detecting each other's rows.
RowKey = tuple[str, str, OutputKind, bytes]
Outcome = tuple["Row", "FloatArray | BackendError"]
_MISSING: Final[FloatArray] = np.empty(0, dtype=np.float32)


class RowWaiter:
    """Waits for the rows of one caller.

    The waiter calls `on_end` once, when the last row has arrived or a row has failed. The arguments
    are the waiter itself and the error or `None`. `pending` holds the rows that have not arrived.
    The waiter belongs to the event loop's thread, but any thread may read `is_awaited`. This flag
    becomes false when the waiter has ended or its caller has left.
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
        # The argument is this waiter. Its type is `Any`, because it may be of a subclass.
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
        """Store a row's value; `computed_tokens` is 0 for a cached or coalesced row."""
        self.values[index] = value
        self.missing -= 1
        if computed_tokens:
            self.rows += 1
            self.tokens += computed_tokens
        if self.missing == 0 and self.is_awaited:
            self.is_awaited = False
            self.on_end(self, None)

    def fail(self, error: BackendError) -> None:
        """End the wait with an error."""
        if self.is_awaited:
            self.is_awaited = False
            self.on_end(self, error)

    def leave(self) -> "list[Row]":
        """Stop waiting and return the pending rows.

        The owner calls this after every wait, whether it failed or not. This breaks reference
        cycles between rows and waiters.
        """
        self.is_awaited = False
        pending, self.pending = self.pending, []
        return pending


class RequestWork(msgspec.Struct, kw_only=True, eq=False):
    """Tracks the reserved work of a request.

    `reserved` is the predicted seconds of rows that are not queued yet. The loop's thread writes
    this value, and worker threads may read it at any time.
    """

    reserved: float = 0.0
    items: int = 1
    is_late: bool = False


class Row(msgspec.Struct, kw_only=True, eq=False):
    """Holds one sequence of tokens on its way through a model, and the callers that wait for it.

    `due` is the deadline of the first caller, and orders the queue. `deadline` is the latest
    deadline of all callers. If a later caller has a much earlier deadline and this row does not run
    yet, a new row replaces this row. The field `slower` of the new row refers to the replaced row.
    `work` is the predicted seconds without the fixed cost of a batch. `flow`, `batch_class`, `kind`
    and `length` are derived from the other fields.
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
    """The time at which the row was submitted to the queue."""
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
        # `any` would take twice as long, and this runs several times per row.
        for waiter, _ in self.waiters:  # noqa: SIM110
            if waiter.is_awaited:
                return True
        return False

    @property
    def is_live(self) -> bool:
        """Whether a caller waits and the row has not expired."""
        return self.is_awaited and not self.is_expired

    def join(self, waiter: RowWaiter, index: int) -> bool:
        """Let another caller wait for this row.

        Returns `False` if a worker thread has just dropped the row as expired.
        """
        self.waiters.append((waiter, index))
        self.deadline = max(self.deadline, waiter.deadline)
        if self.is_expired:
            self.waiters.pop()
        return not self.is_expired

    def overtake(self, slower: "Row") -> None:
        """Take over the callers of an equal row that would run later."""
        self.waiters = slower.waiters + self.waiters
        self.deadline = max(self.deadline, slower.deadline)
        slower.waiters = []
        self.slower = None
