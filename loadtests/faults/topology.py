"""Declares what a topology offers: a running system whose parts can be broken."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self  # Any: values of rows

import msgspec

from gateway.events.hit_run import ids_from
from loadtests.faults.judge import LedgerRow

LEDGER_QUERY = (
    "SELECT id, requests, status, tenant, items, failed FROM usage_events"
    " WHERE batch = 0 AND time >= {since}"
)
"""Reads the rows that `ledger_rows` takes; `since` is in nanoseconds since the epoch."""


def ledger_rows(found: Iterable[Sequence[Any]]) -> list[LedgerRow]:
    """Return the requests in rows of `LEDGER_QUERY`, one for each request of a run."""
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


class TopologyError(Exception):
    """The topology itself failed, so that the case says nothing about the product."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request: where it goes, its body, how many items it has, and its allowed statuses."""

    path: str
    body: bytes
    items: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    statuses: frozenset[int] = frozenset({200})
    key: str = ""
    """The key to send in place of the tenant's key; empty: the tenant's key."""
    declared_bytes: int = 0
    """The length that the request declares, if that is not the length of its body."""
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


class Topology(Protocol):
    """A system of processes, namespaces, containers or pods. It runs while it is entered.

    All methods block, and are called from one thread. A part's name begins with its kind: `backend
    eu-0`, `worker`, `gateway-1`. The kind chooses the window of a fault.
    """

    @property
    def name(self) -> str:
        """The topology's name for `--topology`."""
        ...

    def __enter__(self) -> Self:
        """Start every part, and return when all of them work.

        Raises:
            TopologyError: a part did not start.
        """
        ...

    def __exit__(self, *exc_info: object) -> None:
        """Stop every part, also a part that a fault left stopped."""
        ...

    def parts(self, fault: str) -> Sequence[str]:
        """Return the parts into which a fault can be injected; none if it cannot be injected.

        This is asked before the topology runs, too.
        """
        ...

    def inject(self, fault: str, part: str) -> AbstractContextManager[None]:
        """Inject a fault into a part at the entry, and undo it at the exit.

        The exit returns when the part that was away is started again. It does not wait for others.

        Raises:
            TopologyError: the fault could not be done or undone.
        """
        ...

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Hosts and ports that callers send requests to. They may change while the load runs."""
        ...

    @property
    def keys(self) -> Mapping[str, str]:
        """A key of each tenant, by the tenant's id.

        The limits of these tenants do not refuse the load.
        """
        ...

    @property
    def oracle(self) -> Oracle:
        """The source of the load's questions and the judge of answers."""
        ...

    def inside(self) -> AbstractContextManager[None]:
        """Let the connections that this thread opens reach `addresses`."""
        ...

    def unwell(self) -> Sequence[str]:
        """Return the parts that do not work now."""
        ...

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a reading of `time.time`."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return counts for checks, such as each gateway's requests, from the parts that answer."""
        ...

    def restore(self) -> None:
        """Make all parts work again by hand, after a case that left some of them broken."""
        ...
