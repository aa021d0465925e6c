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
    """The test setup itself failed, so the result of the case says nothing about the product."""


FAILURES = (
    *(TopologyError, AssertionError, OSError, RuntimeError),
    *(subprocess.SubprocessError, httpx.HTTPError),
)
"""A topology raises these when it does not start, or when a fault cannot be injected."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request: its route, its body, its number of items, and its allowed statuses."""

    path: str
    body: bytes
    items: int = 1
    headers: dict[str, str] = {}
    statuses: frozenset[int] = frozenset({200})
    key: str = ""
    """The API key to send instead of the tenant's key; if empty, the tenant's key is sent."""
    is_left: bool = False
    """Whether the caller disconnects before the answer comes."""


class Oracle(Protocol):
    """Makes questions whose right answers it knows."""

    def questions(self, seed: int) -> Iterator[Question]:
        """Yield endless questions. Another seed gives other questions."""
        ...

    def is_right(self, question: Question, body: bytes) -> bool:
        """Return whether `body` answers the question.

        The load calls this only after its last request.
        """
        ...


class Topology(ABC):
    """A system of processes, namespaces, containers or pods. It runs while it is entered.

    All methods block, and are called from one thread.
    """

    keys: Mapping[str, str]
    """A key of each tenant, by the tenant's id. Only limited tenants may be refused for limits."""
    oracle: Oracle
    """Makes the questions of the load and judges the answers."""
    addresses: Sequence[tuple[str, int]]
    """Hosts and ports to which callers send requests. They may change while the load runs."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        """Values that acts leave for checks."""

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
        """Stop every part, including parts that a fault left paused."""
        self._stack.close()

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start every part, and give `stack` a callback to stop it. Raises one of `FAILURES`."""

    @abstractmethod
    def unwell(self) -> Sequence[str]:
        """Return the parts that do not work now."""

    @abstractmethod
    def restore(self) -> None:
        """Make all parts work again after a case that left some of them broken."""

    @abstractmethod
    def ask_ledger(self, query: str) -> Iterable[Sequence[Any]]:
        """Return the rows of a query to the ledger."""

    def billed(self, since: float) -> list[LedgerRow]:
        """Return the requests in the ledger since a reading of `time.time`."""
        return ledger_rows(self.ask_ledger(_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return the counters that checks compare, such as each gateway's number of requests.

        Parts that do not answer are left out.
        """
        return {}

    def inside(self) -> AbstractContextManager[None]:
        """While entered, connections that this thread opens reach `addresses`."""
        return nullcontext()


def ledger_rows(found: Iterable[Sequence[Any]]) -> list[LedgerRow]:
    """Return the requests in rows of `_QUERY`.

    A row for several requests becomes several `LedgerRow`s.
    """
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
    """Call `action` repeatedly in a thread; each call returns the seconds until the next call.

    Raises:
        TopologyError: `action` raised an error, which ended the thread.
    """
    stop = threading.Event()
    errors: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(action()):
                pass
        except Exception as error:  # noqa: BLE001 - raised again at the exit, in the other thread
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
