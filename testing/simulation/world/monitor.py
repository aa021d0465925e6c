"""Judges a run while it goes on, so that the first moment of each violation is known."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from testing.simulation.world.callers import OK, Attempt, items_of, owner_of
from testing.simulation.world.invariants import (
    LEDGER,
    USAGE,
    Disturbance,
    Row,
    noticeable,
    read_ledger,
)
from testing.simulation.world.model import Oracle
from testing.simulation.world.scenario import LIMITED, WINDOW, WORKERS

SLACK: Final = 0.06
"""Seconds after its deadline in which an answer may still come: the 0.05 s by which a worker waits
longer for an item of another request, and the delays of the simulated network. A worker counts from
the arrival of the request, so a handshake, the request and the answer add at most 2.4 ms."""
_LOOK: Final = 0.25
_VERSION: Final = "PRAGMA data_version"
_LOCAL_SHARE: Final = 0.1
_REACHES_AGAIN: Final = 5.0
"""Seconds after a fault between caller and worker in which connections may still suffer."""


class Monitor:
    """Collects findings while a run goes on.

    `faults` has the faults so far, and the ones that have not ended. `capacity_at` is the largest
    capacity that may apply at a time. `bounds` yields each bound that is exceeded now, as a name
    and a sentence. `note` adds a line to the story.
    """

    def __init__(
        self,
        *,
        oracle: Oracle,
        ledger: Path,
        faults: Sequence[Disturbance],
        capacity_at: Callable[[float], int],
        bounds: Callable[[], Iterable[tuple[str, str]]],
        clock: Callable[[], float],
        note: Callable[[str], None],
    ) -> None:
        self.findings: list[str] = []
        self.judges_times_from: float | None = None
        """Deadlines of requests that were sent earlier are not judged; `None`: of none."""
        self._faults = faults
        self._bounds = bounds
        self._clock = clock
        self._note = note
        self._texts = TextRules(oracle)
        self._limit = LimitRule(faults, capacity_at)
        self._bill = BillRules()
        self._ledger = ledger
        self._watched: sqlite3.Connection | None = None
        self._version: int | None = None
        self._last_row = 0
        self._exceeded: set[str] = set()

    def tell(self, finding: str) -> None:
        """Add a finding, which belongs to this moment."""
        self.findings.append(f"at {self._clock():.2f} s: {finding}")
        self._note(f"FINDING: {finding}")

    def sent(self, attempt: Attempt) -> None:
        """Hear of a request that is sent now."""
        self._texts.sent(attempt)

    def ended(self, attempt: Attempt) -> None:
        """Judge the answer of a request, or that there is none."""
        self._tell_all(self._texts.ended(attempt))
        self._tell_all(self._limit.ended(attempt))
        self._tell_all(self._bill.ended(attempt))
        begin = self.judges_times_from
        if begin is not None and attempt.sent >= begin:
            self._tell_all(lateness(attempt, self._faults))

    async def watch(self) -> None:
        """Look at the bounds and the ledger every quarter of a second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            self.look()

    def look(self) -> None:
        """Judge what is in the ledger since the last look, and all bounds."""
        if (ledger := self._changed_ledger()) is not None:
            for row in read_ledger(ledger, after=self._last_row):
                self._last_row = row.number
                self._tell_all(self._bill.billed(row))
        for name, finding in self._bounds():
            if name not in self._exceeded:
                self._exceeded.add(name)
                self.tell(finding)

    def _changed_ledger(self) -> sqlite3.Connection | None:
        """Return the ledger if somebody has written to it since the last look."""
        if self._watched is None:
            self._watched = sqlite3.connect(self._ledger)
        former, (self._version,) = self._version, self._watched.execute(_VERSION).fetchone()
        return self._watched if self._version != former else None

    def _tell_all(self, findings: Iterable[str]) -> None:
        for finding in findings:
            self.tell(finding)


class TextRules:
    """An answer is right, and a hit is on a text that was sent before.

    It was sent by the same tenant, unless all share the results of the model: see `owner_of`.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._asked = Counter[tuple[str, str, str, str]]()

    def sent(self, attempt: Attempt) -> None:
        """Remember the texts of a request."""
        self._asked.update(_keys(attempt))

    def ended(self, attempt: Attempt) -> Iterator[str]:
        """Yield what is wrong with an answer for its tenant, model, revision or parameters."""
        if attempt.status != OK:
            return
        request = attempt.request
        if wrong := self._oracle.problem(request.path, request.body, attempt.body):
            yield f"wrong answer {attempt.id} to {request.tenant}: {wrong}"
            return
        usage, texts = msgspec.json.decode(attempt.body)["usage"], items_of(request.body)
        fresh = sum(self._asked[key] == 1 for key in _keys(attempt))  # its own
        if usage["hit"] and fresh == len(texts):
            yield f"{attempt.id}: {request.tenant} got a hit on texts that were never sent"


def _keys(attempt: Attempt) -> set[tuple[str, str, str, str]]:
    request = attempt.request
    owner, model = owner_of(request), str(request.body.get("model", ""))
    return {(owner, request.path, model, text) for text in items_of(request.body)}


class LimitRule:
    """No more requests of the limited tenant are admitted than its limit allows.

    A worker that cannot reach Redis admits a local share, and so does a region that cannot reach
    the ledger. A Redis that lost data begins with full buckets.
    """

    def __init__(self, faults: Sequence[Disturbance], capacity_at: Callable[[float], int]) -> None:
        self._faults = faults
        self._capacity_at = capacity_at
        self._admitted: list[float] = []
        """When each admitted request was sent."""
        self._is_exceeded = False

    def ended(self, attempt: Attempt) -> Iterator[str]:
        """Yield if an interval that ends now has too many admitted requests."""
        is_admitted = attempt.request.tenant == LIMITED and attempt.status == OK
        if not is_admitted or self._is_exceeded:
            return
        self._admitted = sorted([*self._admitted, attempt.sent])
        end, capacity = attempt.came, 0
        for count, begin in enumerate(reversed(self._admitted), 1):
            capacity = max(capacity, self._capacity_at(begin))
            most = self._most(begin, end, capacity)
            if count > most:
                self._is_exceeded = True
                yield f"{count} admitted from {begin:.2f} to {end:.2f}, above {most:.1f}"
                return

    def _most(self, begin: float, end: float, capacity: int) -> float:
        near = [f for f in self._faults if f.begun <= end and begin <= f.ended + WINDOW]
        is_unreached = any(name.endswith("-redis") for fault in near for name in fault.machines)
        kinds = (*LEDGER, "pause")  # a worker that is paused for long loses its share, too
        cut_off = {name for fault in near if fault.kind in kinds for name in fault.machines}
        fresh = sum(fault.kind in ("lose", "empty", "crash", "jump") for fault in near)
        refilled = capacity * (1 + (end - begin) / WINDOW)
        local = _LOCAL_SHARE * (len(WORKERS) if is_unreached else len(cut_off))
        return refilled * (1 + local) + fresh * capacity + 1


class BillRules:
    """An id is billed once, as its answer said, and a refused request is not billed."""

    def __init__(self) -> None:
        self._answers: dict[str, Attempt] = {}
        self._refused: set[str] = set()
        self._billed: set[str] = set()
        self._open: dict[str, Row] = {}
        """Rows of which an answer is not known yet, by each of their ids."""
        self._lost_keys: set[str] = set()
        """Idempotency keys of requests whose answers may have been billed and lost. The answer to
        the next request of the key may have been computed again."""

    def billed(self, row: Row) -> Iterator[str]:
        """Yield what is wrong with a new row."""
        if row.status != OK:
            return
        for id_ in row.ids:
            if id_ in self._billed:
                yield f"{id_} is in the ledger twice"
            elif id_ in self._refused:
                yield f"{id_} is billed, but was refused"
            self._billed.add(id_)
            self._open[id_] = row
        yield from self._compared(row)

    def ended(self, attempt: Attempt) -> Iterator[str]:
        """Yield how an answer contradicts the ledger or another answer."""
        id_, key = attempt.id, attempt.request.idempotency_key
        if attempt.status != OK:
            if key and attempt.is_written and not attempt.status:
                self._lost_keys.add(key)
            if id_:  # otherwise, the request may have been answered, and is billed
                self._refused.add(id_)
                if id_ in self._billed:
                    yield f"{id_} is billed, but was refused"
            return
        former = self._answers.setdefault(id_, attempt)
        if former is not attempt and not (key and key == former.request.idempotency_key):
            yield f"{id_} is the id of two answers"
        if id_ in self._open:
            yield from self._compared(self._open[id_])

    def _compared(self, row: Row) -> Iterator[str]:
        """Compare a row with its answers, once all are known."""
        mine = [self._answers[each] for each in row.ids if each in self._answers]
        if len(mine) < len(row.ids):
            return
        for id_ in row.ids:
            self._open.pop(id_, None)
        told = Counter[str]()
        for attempt in mine:
            usage = msgspec.json.decode(attempt.body)["usage"]
            told.update({name: usage[name] for name in USAGE})
        is_again = any(attempt.request.idempotency_key in self._lost_keys for attempt in mine)
        names = ("items",) if is_again else USAGE
        if any(told[name] != row.usage[name] for name in names):
            yield f"{row.ids[0]} is billed as {row.usage}, but the answer said {dict(told)}"
        if any(attempt.request.tenant != row.tenant for attempt in mine):
            yield f"{row.ids[0]} is billed to {row.tenant}"


def lateness(attempt: Attempt, faults: Sequence[Disturbance]) -> Iterator[str]:
    """Yield if there is no answer in time, unless a fault was between caller and worker."""
    machines = {f"{attempt.worker.split('-')[0]}-gateway", "callers"}
    near = (fault for fault in noticeable(faults) if fault.machines & machines)
    if any(fault.meets(attempt, after=_REACHES_AGAIN) for fault in near):
        return
    took = attempt.came - attempt.sent
    if not attempt.status:
        yield f"no answer from {attempt.worker} at {attempt.sent:.2f} within {took:.2f} s"
    elif took > attempt.request.timeout + SLACK:
        limit = f"{attempt.request.timeout:g} s, at {attempt.sent:.2f}"
        yield f"{attempt.worker} answered after {took:.2f} s, not within {limit}"
