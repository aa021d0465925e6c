"""Declares what a topology offers: a running system whose parts can be broken."""

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, Self  # Any: values of rows, and what acts note

import httpx
import msgspec

from gateway.events.hit_run import ids_from
from loadtests.faults.judge import LedgerRow

_QUERY = (
    "SELECT id, requests, status, tenant, items, failed FROM usage_events"
    " WHERE batch = 0 AND time >= {since}"
)


class TopologyError(Exception):
    """The topology itself failed, so that the case says nothing about the product."""


FAILURES = (
    *(TopologyError, AssertionError, OSError, RuntimeError),
    *(subprocess.SubprocessError, httpx.HTTPError),
)
"""A topology raises these when it does not start, or when a fault cannot be injected."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request: where it goes, its body, how many items it has, and its allowed statuses."""

    path: str
    body: bytes
    items: int = 1
    headers: dict[str, str] = {}
    statuses: frozenset[int] = frozenset({200})
    key: str = ""
    """The key to send in place of the tenant's key; empty: the tenant's key."""
    is_left: bool = False
    """The caller disconnects before the answer comes."""


class Oracle(Protocol):
    """Asks questions whose right answers it knows."""

    def questions(self, seed: int) -> Iterator[Question]:
        """Yield endless questions. Another seed gives other questions."""
        ...

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether `body` answers the question; called after the load, for each answer."""
        ...


class Topology(ABC):
    """A system of processes, namespaces, containers or pods. It runs while it is entered.

    All methods block, and are called from one thread.
    """

    keys: Mapping[str, str]
    """A key of each tenant, by the tenant's id. Limits refuse requests of limited tenants only."""
    oracle: Oracle
    """The source of the load's questions and the judge of answers."""
    addresses: Sequence[tuple[str, int]]
    """Hosts and ports that callers send requests to. They may change while the load runs."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        """What acts note for checks."""

    def __enter__(self) -> Self:
        """Start every part, and return when all of them work.

        Raises:
            TopologyError: a part did not start.
        """
        try:
            with ExitStack() as stack:
                self.start(stack)
                self._stack = stack.pop_all()
        except FAILURES as error:
            raise TopologyError(f"{type(error).__name__}: {error}") from error
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop every part, also a part that a fault left stopped."""
        self._stack.close()

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start every part; `stack` gets what stops each. Raises one of `FAILURES`."""

    @abstractmethod
    def unwell(self) -> Sequence[str]:
        """Return the parts that do not work now."""

    @abstractmethod
    def restore(self) -> None:
        """Make all parts work again by hand, after a case that left some of them broken."""

    @abstractmethod
    def ask_ledger(self, query: str) -> Iterable[Sequence[Any]]:
        """Return the rows of a query."""

    def billed(self, since: float) -> list[LedgerRow]:
        """Return the ledger's requests since a reading of `time.time`."""
        return ledger_rows(self.ask_ledger(_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return counts for checks, such as each gateway's requests, from the parts that answer."""
        return {}

    def inside(self) -> AbstractContextManager[None]:
        """Let the connections that this thread opens reach `addresses`."""
        return nullcontext()


def ledger_rows(found: Iterable[Sequence[Any]]) -> list[LedgerRow]:
    """Return the requests in rows of `_QUERY`, one for each request of a run."""
    return [
        LedgerRow(
            id=one,
            status=int(status),
            tenant=str(tenant),
            items=(int(items) - int(failed)) / int(count),
            run=str(first),
        )
        for first, count, status, tenant, items, failed in found
        for one in ids_from(str(first), int(count))
    ]


@contextmanager
def repeating(action: Callable[[], float]) -> Iterator[None]:
    """Call `action` from a thread; it returns how many seconds to wait until the next call.

    Raises:
        TopologyError: `action` raised an error, and was not called any more.
    """
    stop = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(action()):
                pass
        except Exception as error:  # noqa: BLE001 - raised at the exit, in the other thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for error in errors:
        raise TopologyError(f"what was repeated failed: {error!r}") from error
