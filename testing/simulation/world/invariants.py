"""Judges a run: pure functions turn attempts, rows of the ledger and faults into findings.

A finding is a sentence about an invariant that did not hold.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicegate.gateway.events.hit_run import ids_from
from sluicegate.gateway.ledger.ledger import Ledger
from testing.simulation.world.callers import Attempt
from testing.simulation.world.model import Oracle
from testing.simulation.world.scenario import (
    CAPACITY,
    LIMITED,
    MIDNIGHT,
    TENANTS,
    WINDOW,
    WORKERS,
)

SLACK: Final = 1.0
"""Seconds after its deadline in which an answer may still come."""
SYNC: Final = 1.0
"""A power cut may destroy usage events of the last so many seconds; see `events_sync_interval`."""
_LOCAL_SHARE: Final = 0.1
_LEARNED: Final = 5.0
_LONG: Final = 2.0
_AT_ONCE: Final = 0.5
_FEW: Final = 0.2
"""See `late_refusals`; the first three are in seconds."""
_MONTHS: Final = ("2026-09",)
_OK: Final = 200
_USAGE: Final = ("items", "hit", "collapsed", "computed", "failed", "rows", "tokens")
_QUERY: Final = f"SELECT id, requests, time, tenant, model, task, status, {', '.join(_USAGE)}"


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as it happened. `machines` are the machines that it concerned."""

    kind: str
    target: str
    machines: frozenset[str]
    begun: float
    ended: float

    def meets(self, attempt: Attempt, *, after: float = 0.0) -> bool:
        """Return whether the fault overlaps the attempt or the life of its connection.

        The effects of the fault may last for some seconds `after` its end.
        """
        return self.begun <= attempt.came and attempt.connected <= self.ended + after


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the ledger, or a run of requests with the sums of their numbers."""

    ids: tuple[str, ...]
    time: float
    tenant: str
    model: str
    task: str
    status: int
    usage: dict[str, int]


def read_ledger(path: Path) -> list[Row]:
    """Return the rows of a SQLite ledger."""
    found = _query(path, f"{_QUERY} FROM usage_events ORDER BY id")
    return [
        Row(
            ids=tuple(ids_from(first, count)),
            time=time / 1e9,
            tenant=tenant,
            model=model,
            task=task,
            status=status,
            usage=dict(zip(_USAGE, usage, strict=True)),
        )
        for first, count, time, tenant, model, task, status, *usage in found
    ]


def dead_letters(path: Path) -> Iterator[str]:
    """Yield the reason of each record of usage that could not be read."""
    for (reason,) in _query(path, "SELECT reason FROM dead_letters"):
        yield f"a record of usage could not be counted: {reason}"


def _query(path: Path, query: str) -> list[Any]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(query).fetchall()
    connection.close()
    return found


def wrong_answers(attempts: Sequence[Attempt], oracle: Oracle) -> Iterator[str]:
    """Yield each answer that is wrong for its tenant, model, revision or parameters."""
    asked = defaultdict[tuple[str, str, str, str], list[float]](list)
    for attempt in attempts:
        request = attempt.request
        for text in set(_texts(request.body)):
            what = request.tenant, request.path, str(request.body["model"]), text
            asked[what].append(attempt.sent)
    for attempt in attempts:
        request = attempt.request
        if attempt.status != _OK:
            continue
        if wrong := oracle.problem(request.path, request.body, attempt.body):
            yield f"wrong answer {attempt.id} to {request.tenant}: {wrong}"
            continue
        fresh = 0
        for text in set(_texts(request.body)):
            times = asked[request.tenant, request.path, str(request.body["model"]), text]
            fresh += sum(sent <= attempt.came for sent in times) == 1  # its own
        if msgspec.json.decode(attempt.body)["usage"]["hit"] and fresh == len(_texts(request.body)):
            yield f"{attempt.id}: {request.tenant} got a hit on texts that it never sent"


def computed_again(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield each item that workers of a region computed for several requests of one item.

    Nothing may have disturbed them, and no model may have changed.
    """
    computed = defaultdict[tuple[str, str, str, bytes], dict[str, int]](dict)
    for attempt in attempts:
        request = attempt.request
        if attempt.status == _OK and request.items == 1 and not request.cache_control:
            region, body = attempt.worker.split("-")[0], msgspec.json.encode(request.body)
            usage = msgspec.json.decode(attempt.body)["usage"]
            item = region, request.tenant, request.path, body
            computed[item][attempt.id] = usage["computed"]
    for (region, tenant, path, _), counts in computed.items():
        if sum(counts.values()) > 1:
            ids = ", ".join(id_ for id_, count in counts.items() if count)
            yield f"an item of {tenant} on {path} was computed again in {region}: {ids}"


def _texts(body: Mapping[str, Any]) -> list[str]:
    found: list[str] = body.get("input") or body["documents"]
    return found


def billing(
    attempts: Sequence[Attempt], rows: Sequence[Row], faults: Sequence[Disturbance]
) -> Iterator[str]:
    """Yield how ledger and answers differ. Each answer must be billed once, and nothing else."""
    billed = Counter(each for row in rows if row.status == _OK for each in row.ids)
    answers: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt.status == _OK:
            former = answers.setdefault(attempt.id, attempt)
            key = former.request.idempotency_key
            if former is not attempt and not (key and key == attempt.request.idempotency_key):
                yield f"{attempt.id} is the id of two answers"
    yield from (f"{id_} is in the ledger {n} times" for id_, n in billed.items() if n > 1)
    for id_, attempt in answers.items():
        if not billed[id_] and not _may_be_lost(attempt, faults):
            tenant = attempt.request.tenant
            yield f"{id_} of {tenant}, answered at {attempt.came:.2f}, is not billed"
    yield from _other_numbers(attempts, answers, rows)
    yield from _unasked(attempts, answers, rows)
    yield from _billed_again(attempts, answers, faults)


def _may_be_lost(attempt: Attempt, faults: Sequence[Disturbance]) -> bool:
    """Return whether a power cut may have destroyed the event of an answer."""
    machine = f"{attempt.worker.split('-')[0]}-gateway"
    return any(
        fault.kind == "crash"
        and machine in fault.machines
        and fault.begun - SYNC <= attempt.came <= fault.ended + SLACK
        for fault in faults
    )


def _other_numbers(
    attempts: Sequence[Attempt], answers: Mapping[str, Attempt], rows: Sequence[Row]
) -> Iterator[str]:
    """Yield rows with other numbers than the answers.

    An answer may have been computed again for the same key after one that was billed and lost.
    """
    lost = {a.request.idempotency_key for a in attempts if a.is_written and not a.status} - {""}
    for row in rows:
        mine = [answers[each] for each in row.ids if each in answers]
        if row.status != _OK or len(mine) < len(row.ids):
            continue
        told = Counter[str]()
        for attempt in mine:
            usage = msgspec.json.decode(attempt.body)["usage"]
            told.update({name: usage[name] for name in _USAGE})
        is_again = any(attempt.request.idempotency_key in lost for attempt in mine)
        names = ("items",) if is_again else _USAGE
        if any(told[name] != row.usage[name] for name in names):
            yield f"{row.ids[0]} is billed as {row.usage}, but the answer said {dict(told)}"
        if any(attempt.request.tenant != row.tenant for attempt in mine):
            yield f"{row.ids[0]} is billed to {row.tenant}"


def _unasked(
    attempts: Sequence[Attempt], answers: Mapping[str, Attempt], rows: Sequence[Row]
) -> Iterator[str]:
    """Yield if more requests are billed without an answer than a tenant has unanswered attempts."""
    billed = {each: row.tenant for row in rows if row.status == _OK for each in row.ids}
    refused = {attempt.id for attempt in attempts if attempt.id and attempt.status != _OK}
    yield from (f"{id_} is billed, but was refused" for id_ in sorted(refused & billed.keys()))
    extra = billed.keys() - answers.keys() - refused
    answered_keys = {attempt.request.idempotency_key for attempt in answers.values()} - {""}
    unanswered = Counter(
        attempt.request.tenant
        for attempt in attempts
        if attempt.is_written
        and not attempt.status
        and attempt.request.idempotency_key not in answered_keys
    )
    for tenant, count in Counter(billed[each] for each in extra).items():
        if count > unanswered[tenant]:
            why = f"but {unanswered[tenant]} had none"
            yield f"{count} requests of {tenant} are billed without an answer, {why}"


def _billed_again(
    attempts: Sequence[Attempt], answers: Mapping[str, Attempt], faults: Sequence[Disturbance]
) -> Iterator[str]:
    """Yield idempotency keys with several answers, unless Redis lost them.

    Within a day, a lost key gives another answer with the same id.
    """
    keys = Counter(a.request.idempotency_key for a in answers.values())
    kinds = {fault.kind for fault in faults}
    for key, count in keys.items():
        if not key or count < 2:
            continue
        times = [t for a in attempts if a.request.idempotency_key == key for t in (a.sent, a.came)]
        has_new_day = min(times) - SLACK < MIDNIGHT < max(times) + SLACK
        if kinds.isdisjoint(("lose", "empty")) or not (has_new_day or kinds & {"jump", "drift"}):
            yield f"the idempotency key {key} has {count} answers"


def invoices(path: Path, rows: Sequence[Row], prices: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each invoice whose total is not the price of the rows, each at its own time."""
    with Ledger(f"sqlite:///{path}") as ledger:
        for tenant in TENANTS:
            for month in _MONTHS:
                lines = ledger.invoice(tenant, month).lines
                told = sum((Decimal(line.exact) for line in lines), Decimal(0))
                own = [r for r in rows if r.tenant == tenant and _day(r).startswith(month)]
                mine = sum(_price(row, prices) for row in own)
                if told * 10**9 != mine:
                    yield f"the invoice of {tenant} for {month} is {told}, not {mine} / 10^9"


def _day(row: Row) -> str:
    return datetime.fromtimestamp(row.time, UTC).date().isoformat()


def _price(row: Row, prices: Sequence[Mapping[str, Any]]) -> int:
    own = [each for each in prices if each["model"] == row.model and each["since"] <= _day(row)]
    price = max(
        own or [each for each in prices if each["model"] == "*"], key=lambda each: each["since"]
    )
    hits = row.usage["hit"] + row.usage["collapsed"]
    return int(hits * price["hit"] + row.usage["computed"] * price["computed"])


def limits(
    attempts: Sequence[Attempt],
    faults: Sequence[Disturbance],
    capacity_at: Callable[[float], int] = lambda _: CAPACITY,
) -> Iterator[str]:
    """Yield if more requests of the limited tenant were admitted than the limit allows.

    A worker that cannot reach Redis admits a local share. A Redis that lost data begins with full
    buckets. `capacity_at` is the largest capacity that may apply at a time.
    """
    admitted = [
        (attempt.sent, attempt.came)
        for attempt in attempts
        if attempt.request.tenant == LIMITED and attempt.status == _OK
    ]
    emptied = [f for f in faults if f.kind in ("lose", "empty", "crash", "jump")]
    unreached = [f for f in faults if any(name.endswith("-redis") for name in f.machines)]
    capacities = [(capacity_at(sent), sent) for sent, _ in admitted]
    for begin, _ in admitted:
        for _, end in admitted:
            if end <= begin:
                continue
            count = sum(begin <= sent and came <= end for sent, came in admitted)
            capacity = max(at for at, sent in capacities if begin <= sent <= end)
            refilled = capacity * (1 + (end - begin) / WINDOW)
            local = (
                _LOCAL_SHARE * len(WORKERS)
                if any(_meets(f, begin, end) for f in unreached)
                else 0.0
            )
            fresh = sum(_meets(f, begin, end) for f in emptied)
            if count > refilled * (1 + local) + fresh * capacity + 1:
                yield f"{count} admitted from {begin:.2f} to {end:.2f}, above {refilled:.1f}"
                return


def _meets(fault: Disturbance, begin: float, end: float) -> bool:
    return fault.begun <= end and begin <= fault.ended + WINDOW


def deadlines(attempts: Sequence[Attempt], faults: Sequence[Disturbance]) -> Iterator[str]:
    """Yield requests without an answer in time, unless a fault was between caller and worker."""
    for attempt in attempts:
        machine = f"{attempt.worker.split('-')[0]}-gateway"
        between = [
            fault
            for fault in faults
            if fault.meets(attempt, after=5.0)
            and (machine in fault.machines or "callers" in fault.machines)
        ]
        if between:
            continue
        took = attempt.came - attempt.sent
        if not attempt.status:
            yield f"no answer from {attempt.worker} at {attempt.sent:.2f} within {took:.2f} s"
        elif took > attempt.request.timeout + SLACK:
            limit = f"{attempt.request.timeout:g} s, at {attempt.sent:.2f}"
            yield f"{attempt.worker} answered after {took:.2f} s, not within {limit}"


def late_refusals(attempts: Sequence[Attempt], faults: Sequence[Disturbance]) -> Iterator[str]:
    """Yield if requests wait in vain while all backends are slow, instead of being refused.

    Backends learn from a batch how slow they are.
    """
    if {fault.kind for fault in faults} != {"model-slow"}:
        return
    regions = {worker.split("-")[0] for worker in WORKERS}
    if {fault.target for fault in faults} != {f"{region}-backend" for region in regions}:
        return
    begun = max(fault.begun for fault in faults) + _LEARNED
    ended = min(fault.ended for fault in faults)
    refused = [
        attempt.came - attempt.sent
        for attempt in attempts
        if attempt.status in (503, 504)
        and attempt.request.timeout >= _LONG
        and begun <= attempt.sent
        and attempt.came <= ended
    ]
    late = [took for took in refused if took > _AT_ONCE]
    if len(late) > 1 + _FEW * len(refused):
        yield f"{len(late)} of {len(refused)} refusals took up to {max(late):.2f} s"


def errors_without_faults(
    attempts: Sequence[Attempt], faults: Sequence[Disturbance], former: Collection[str]
) -> Iterator[str]:
    """Yield requests that failed although no fault was near. `former` are replaced secrets."""
    for attempt in attempts:
        is_limited = attempt.status == 429 and attempt.request.tenant == LIMITED
        is_hasty = attempt.status in (503, 504) and attempt.request.timeout < 1.0
        is_twin = attempt.status == 409 and attempt.request.idempotency_key
        is_former = attempt.status == 401 and attempt.secret in former
        if attempt.status == _OK or is_limited or is_hasty or is_twin or is_former:
            continue
        if not any(fault.meets(attempt, after=10.0) for fault in faults):
            yield f"{attempt.worker} said {attempt.status} {attempt.code} at {attempt.sent:.2f}"
