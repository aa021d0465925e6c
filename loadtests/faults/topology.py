"""Declares what a topology offers: a running system whose parts can be broken."""

import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol, Self  # Any: values of rows, and what acts note

import httpx
import msgspec

from loadtests.faults.judge import LedgerRow
from sluicegate.gateway.events.hit_run import ids_from
from testing.loopback import no_authorities

_QUERY = (
    "SELECT id, requests, status, tenant, items, failed FROM usage_events"
    " WHERE batch = 0 AND time >= {since}"
)


class TopologyError(Exception):
    """The test setup itself failed, or a part of the system did not do what an operator asked."""


FAILURES = (
    *(TopologyError, AssertionError, OSError, RuntimeError),
    *(subprocess.SubprocessError, httpx.HTTPError),
)
"""An act raises one of these when a fault cannot be injected or undone."""


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
        """Return whether `body` answers the question. Takes some processor time."""
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
        """Start every part, and return when all of them work."""
        with ExitStack() as stack:
            self.start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop every part, including parts that a fault left paused."""
        self._stack.close()

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start every part, and give `stack` a callback to stop it.

        Raises:
            TopologyError: this machine lacks something.
        """

    @abstractmethod
    def unwell(self) -> Sequence[str]:
        """Return the parts that do not work now."""

    @abstractmethod
    def ask_ledger(self, query: str) -> Iterable[Sequence[Any]]:
        """Return the rows of a query to the ledger."""

    def billed(self, since: float) -> list[LedgerRow]:
        """Return the requests in the ledger since a reading of `time.time`."""
        return ledger_rows(self.ask_ledger(_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return the counters that checks compare, such as each gateway's number of requests.

        The counters of parts that do not answer are 0.
        """
        return {}


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


def client_of(url: str, key: str, *, timeout: float = 60.0) -> httpx.Client:
    """Return a client that sends a bearer token."""
    headers = {"authorization": f"Bearer {key}"}
    return httpx.Client(base_url=url, headers=headers, timeout=timeout, verify=no_authorities())


def counted(admin: httpx.Client, metrics: Mapping[str, str]) -> dict[str, float]:
    """Read metrics from a gateway's metrics page; each is 0 if the page cannot be read.

    A metric with labels is one series, such as `breaker_openings_total{dependency="cache_redis"}`.
    A metric without labels is the sum of its series.
    """
    page = ""
    with suppress(httpx.HTTPError):
        page = admin.get("/metrics").raise_for_status().text
    lines = [line.removeprefix("sluicegate_").rpartition(" ") for line in page.splitlines()]
    return {
        name: sum(float(n) for series, _, n in lines if metric in (series, series.split("{")[0]))
        for name, metric in metrics.items()
    }


@contextmanager
def repeating(action: Callable[[], float]) -> Iterator[None]:
    """Call `action` repeatedly in a thread; each call returns the seconds until the next call.

    Raises:
        TopologyError: `action` raised an error, which ended the thread.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(action()):
            pass

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
    if error := running.exception():
        raise TopologyError(f"what was repeated failed: {error!r}") from error
