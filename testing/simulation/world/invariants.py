"""Judges a run at its end: pure functions turn attempts, the ledger and faults into findings.

A finding is a sentence about an invariant that did not hold. `monitor` judges what can be judged
while the run goes on.
"""

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import msgspec

from sluicegate.gateway.events.hit_run import ids_from
from sluicegate.gateway.ledger.ledger import Ledger
from testing.simulation.world.callers import OK, Attempt, items_of, owner_of
from testing.simulation.world.model import GUARD_PATH
from testing.simulation.world.scenario import LIMITED, MIDNIGHT, TENANTS, WORKERS

SYNC: Final = 1.0
"""A power cut may destroy usage events of the last so many seconds; see `events_sync_interval`."""
STOP: Final = "stop"
"""The kind of a stop that an operator wants."""
LEDGER: Final = ("ledger", "ledger-commit")
"""The kinds of outages of the ledger. Callers notice them only if something else fails, too."""
_LOSING: Final = frozenset({"crash", "full", "broken", "lose", "empty"})
"""The kinds of faults by which the request log may lose lines."""
_LONGEST_STOP: Final = 25.0
"""Seconds for the delay and the drain of a stop, and for the next start."""
_SECONDS: Final = 1.0
"""The precision of the times of faults and midnight."""
_LEARNED: Final = 5.0
_LONG: Final = 2.0
_AT_ONCE: Final = 0.5
_FEW: Final = 0.2
"""See `late_refusals`; the first three are in seconds."""
_RESTARTED: Final = 10.0
"""Seconds after a fault within which everything works again."""
_DYING: Final = frozenset({"kill", "kill-call", "kill-request", "crash", STOP})
_KNOWN: Final = 6.0
"""Seconds after a fault within which a worker may not count as live, or may not know a purge."""
_UNCLEAR: Final = "internal_error"
"""The code of errors that the product did not expect."""
_MONTHS: Final = ("2026-09",)
USAGE: Final = ("items", "hit", "collapsed", "computed", "failed", "rows", "tokens")
_QUERY: Final = f"SELECT rowid, id, requests, time, tenant, model, task, status, {', '.join(USAGE)}"


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """A fault as it happened. `machines` are the machines that it concerned.

    A fault that has not ended ends at infinity.
    """

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

    def delays_end_of(self, other: "Disturbance") -> bool:
        """Return whether the fault is there while what `other` broke begins to work again."""
        is_near = other.begun <= self.ended and self.begun <= other.ended + _RESTARTED
        return is_near and not self.machines.isdisjoint(other.machines)


def noticeable(faults: Sequence[Disturbance]) -> list[Disturbance]:
    """Return the faults that callers may notice, in the order of `faults`.

    Without the ledger, running workers go on, but a worker that died cannot start.
    """
    deaths = [f for f in faults if f.kind == "crash" or (f.kind in _DYING and "worker" in f.target)]
    broken = [fault for fault in deaths if fault.kind != STOP]
    found: list[Disturbance] = []
    for fault in faults:
        if fault.kind in LEDGER and any(map(fault.delays_end_of, broken)):
            broken.append(fault)  # the next outage may go on with the delay
            found.append(fault)
        elif fault.kind not in (STOP, *LEDGER):
            found.append(fault)
    return found


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request in the ledger, or a run of requests with the sums of their numbers."""

    number: int
    ids: tuple[str, ...]
    time: float
    tenant: str
    model: str
    task: str
    status: int
    usage: dict[str, int]


def read_ledger(connection: sqlite3.Connection, after: int = 0) -> list[Row]:
    """Return the rows of a SQLite ledger, in their order, with numbers above `after`."""
    query = f"{_QUERY} FROM usage_events WHERE rowid > {after} ORDER BY rowid"
    return [
        Row(
            number=number,
            ids=tuple(ids_from(first, count)),
            time=time / 1e9,
            tenant=tenant,
            model=model,
            task=task,
            status=status,
            usage=dict(zip(USAGE, usage, strict=True)),
        )
        for number, first, count, time, tenant, model, task, status, *usage in connection.execute(
            query
        )
    ]


def dead_letters(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the reason of each record of usage that could not be read."""
    for (reason,) in connection.execute("SELECT reason FROM dead_letters"):
        yield f"a record of usage could not be counted: {reason}"


def computed_again(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield each item that workers of a region computed for several requests of one item.

    Nothing may have disturbed them, and no model may have changed. Workers do not wait for each
    other's items where texts must not be truncated, as in guards.
    """
    computed = defaultdict[tuple[str, str, str, bytes], dict[str, int]](dict)
    for attempt in attempts:
        request = attempt.request
        is_shared = not request.cache_control and request.path != GUARD_PATH
        if attempt.status == OK and request.items == 1 and is_shared:
            region, body = attempt.worker.split("-")[0], msgspec.json.encode(request.body)
            usage = msgspec.json.decode(attempt.body)["usage"]
            item = region, owner_of(request), request.path, body
            computed[item][attempt.id] = usage["computed"]
    for (region, tenant, path, _), counts in computed.items():
        ids = [id_ for id_, count in counts.items() if count]
        if len(ids) > 1:
            which = ", ".join(ids)
            yield f"an item of {tenant} on {path} was computed again in {region}: {which}"


def billing(
    attempts: Sequence[Attempt], rows: Sequence[Row], faults: Sequence[Disturbance]
) -> Iterator[str]:
    """Yield what is billed too little or too much, once all events have reached the ledger."""
    billed = Counter(each for row in rows if row.status == OK for each in row.ids)
    answers: dict[str, Attempt] = {}
    for attempt in attempts:
        if attempt.status == OK:
            answers.setdefault(attempt.id, attempt)
    asked = _first_asked(attempts)
    for id_, attempt in answers.items():
        begun = asked.get(attempt.request.idempotency_key, attempt.sent)
        if not billed[id_] and not _may_be_lost(attempt, begun, faults):
            tenant = attempt.request.tenant
            yield f"{id_} of {tenant}, answered at {attempt.came:.2f}, is not billed"
    yield from _unasked(attempts, answers, rows)
    yield from _billed_again(attempts, answers, faults)


def _first_asked(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Return when each idempotency key was sent first: an answer may be as old as that."""
    asked: dict[str, float] = {}
    for attempt in attempts:
        if key := attempt.request.idempotency_key:
            asked[key] = min(attempt.sent, asked.get(key, attempt.sent))
    return asked


def _may_be_lost(attempt: Attempt, begun: float, faults: Sequence[Disturbance]) -> bool:
    """Return whether a power cut may have destroyed the event of an answer.

    The answer was computed since `begun`. While the disk does not sync, events of any age are lost.
    """
    machine = f"{attempt.worker.split('-')[0]}-gateway"
    own = [fault for fault in faults if machine in fault.machines]
    unsynced = [fault for fault in own if fault.kind in ("broken", "sync")]
    for cut in (fault for fault in own if fault.kind == "crash"):
        before = [f.begun for f in unsynced if f.begun <= cut.begun <= f.ended + SYNC]
        since = min([cut.begun, *before]) - SYNC
        if since <= attempt.came and begun <= cut.ended + _SECONDS:
            return True
    return False


def _unasked(
    attempts: Sequence[Attempt], answers: Mapping[str, Attempt], rows: Sequence[Row]
) -> Iterator[str]:
    """Yield if more requests are billed without an answer than a tenant has unanswered attempts."""
    billed = {each: row.tenant for row in rows if row.status == OK for each in row.ids}
    refused = {attempt.id for attempt in attempts if attempt.id and attempt.status != OK}
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
        has_new_day = min(times) - _SECONDS < MIDNIGHT < max(times) + _SECONDS
        if kinds.isdisjoint(("lose", "empty")) or not (has_new_day or kinds & {"jump", "drift"}):
            yield f"the idempotency key {key} has {count} answers"


def purged_hits(
    attempts: Sequence[Attempt],
    wanted: Mapping[str, str],
    begun: float,
    acknowledged: float,
    faults: Sequence[Disturbance],
) -> Iterator[str]:
    """Yield answers with results from before a purge, which were sent after its acknowledgement.

    `wanted` has the tenant or the model that was purged. The other arguments are when the purge
    began, and when all workers had acknowledged it. A worker that was cut off does not count as
    live, and a Redis and the workers may lose the purge together.
    """
    for attempt in attempts:
        request = attempt.request
        is_purged = owner_of(request) == wanted.get("tenant") or (
            request.body.get("model") == wanted.get("model", "")
        )
        is_again = attempt.status != OK or request.idempotency_key
        if not is_purged or is_again or attempt.sent < acknowledged:
            continue
        hits = msgspec.json.decode(attempt.body)["usage"]["hit"]
        if not hits or _may_miss(attempt, begun, acknowledged, faults):
            continue
        newer = _texts_of(each for each in attempts if _may_store(each, begun, attempt))
        own = Counter(_texts(attempt))
        twice = sum(count - 1 for count in own.values())  # may be hits on each other
        most = twice + sum(text in newer for text in own)
        if hits > most:
            what = f"{hits} hits, at most {most} of them on newer results"
            yield f"{attempt.id}, sent after a purge of {dict(wanted)}, has {what}"


def _may_store(attempt: Attempt, begun: float, before: Attempt) -> bool:
    """Return whether an attempt may have stored results since `begun` that another one finds."""
    request, other = attempt.request, before.request
    is_other = attempt is not before and attempt.sent <= before.came and attempt.came >= begun
    if not is_other or request.cache_control == "no-store":
        return False
    if (owner_of(request), request.body.get("model")) != (owner_of(other), other.body.get("model")):
        return False
    if attempt.worker.split("-")[0] != before.worker.split("-")[0]:
        return False
    if attempt.status != OK:
        return True
    usage = msgspec.json.decode(attempt.body)["usage"]
    return bool(request.idempotency_key) or usage["computed"] + usage["collapsed"] > 0


def _texts(attempt: Attempt) -> list[str]:
    body = attempt.request.body
    return [*items_of(body), *([body["query"]] if "query" in body else [])]


def _texts_of(attempts: Iterable[Attempt]) -> set[str]:
    return {text for attempt in attempts for text in _texts(attempt)}


def _may_miss(
    attempt: Attempt, begun: float, acknowledged: float, faults: Sequence[Disturbance]
) -> bool:
    """Return whether the worker of an attempt may not know a purge, because of a fault.

    An operator's change does not wait for workers whose heartbeats Redis has lost, or could not
    renew.
    """
    region = attempt.worker.split("-")[0]
    gateway, redis = f"{region}-gateway", f"{region}-redis"
    near = [f for f in faults if f.begun <= attempt.sent and begun <= f.ended + _KNOWN]
    workers = gateway, f"{region}-gateway/worker-0", f"{region}-gateway/worker-1"
    of_workers = {fault.kind for fault in near if fault.target in workers}
    of_redis = {fault.kind for fault in near if fault.machines == {redis}}
    losses = [fault for fault in near if fault.target == redis and fault.kind in ("lose", "empty")]
    return (
        any({gateway, redis} <= fault.machines for fault in near)
        or "pause" in of_workers
        or "busy" in of_redis
        or any(each.begun <= acknowledged <= each.ended + _KNOWN for each in losses)
        or ("lose" in of_redis and not of_workers.isdisjoint(_DYING))
    )


def request_logs(
    logs: Mapping[str, bytes],
    attempts: Sequence[Attempt],
    faults: Sequence[Disturbance],
    secrets: Collection[str],
) -> Iterator[str]:
    """Yield what is wrong with the request log of each region.

    It has a line for each answer, and no texts or `secrets`. Lines may be missing from before the
    end of a fault of the disk, or of Redis, which may lose events that are already billed. Lines
    may be there twice after faults.
    """
    for region, content in logs.items():
        own = [a for a in attempts if a.status == OK and a.worker.startswith(region)]
        machines = {f"{region}-gateway", f"{region}-redis"}
        near = [f for f in faults if f.machines & machines and f.kind not in (STOP, *LEDGER)]
        ends = [f.ended for f in near if f.kind in _LOSING]
        lost_until = max(ends, default=-math.inf) + _SECONDS
        lines, unreadable = _ids_in(content)
        asked = _first_asked(attempts)
        times = {a.id: asked.get(a.request.idempotency_key, a.sent) for a in own}
        missing = sorted({a.id for a in own if times[a.id] > lost_until} - lines.keys())
        yield from (f"{id_} is not in the request log of {region}" for id_ in missing)
        if unreadable and not any(fault.kind == "crash" for fault in near):
            yield f"the request log of {region} has {unreadable} unreadable lines"
        if not near:
            twice = [id_ for id_, count in lines.items() if count > 1]
            yield from (f"{id_} is in the request log of {region} twice" for id_ in twice)
        if any(secret.encode() in content for secret in secrets):
            yield f"the request log of {region} has a secret"
        if any(text.encode() in content for a in own for text in items_of(a.request.body)):
            yield f"the request log of {region} has a text"


def _ids_in(content: bytes) -> tuple[Counter[str], int]:
    """Return how often each id is in a request log, and the number of unreadable lines."""
    ids, unreadable = Counter[str](), 0
    for line in content.splitlines():
        try:
            ids[msgspec.json.decode(line)["id"]] += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            unreadable += 1
    return ids, unreadable


def slow_stops(faults: Sequence[Disturbance]) -> Iterator[str]:
    """Yield stops after which nothing served in time, although nothing else was wrong there."""
    for stop in faults:
        took = stop.ended - stop.begun
        if stop.kind != STOP or took <= _LONGEST_STOP:
            continue
        others = [f for f in faults if f.machines & stop.machines and f.kind != STOP]
        if not any(f.begun <= stop.ended and stop.begun <= f.ended for f in others):
            yield f"{stop.target} was away for {took:.1f} s after its stop"


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


def unclear_errors(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Yield requests whose error does not say what failed. No fault excuses such an answer."""
    for attempt in attempts:
        if _UNCLEAR in (attempt.code, *attempt.unread):
            yield f"{attempt.worker} said {_UNCLEAR} to {attempt.id}"


def errors_without_faults(
    attempts: Sequence[Attempt], faults: Sequence[Disturbance], former: Collection[str]
) -> Iterator[str]:
    """Yield requests that failed although no fault was near. `former` are replaced secrets."""
    noticed = noticeable(faults)
    # Without the ledger, a new key is unknown, and a limit that falls may refuse for a moment.
    unplanned = [fault for fault in faults if fault.kind != STOP]
    for attempt in attempts:
        is_limited = attempt.status == 429 and attempt.request.tenant == LIMITED
        is_unread = bool(attempt.unread)
        is_hasty = (attempt.status in (503, 504) or is_unread) and attempt.request.timeout < 1.0
        is_twin = attempt.status == 409 and attempt.request.idempotency_key
        is_former = attempt.status == 401 and attempt.secret in former
        is_fine = attempt.status == OK and not is_unread
        if is_fine or is_limited or is_hasty or is_twin or is_former:
            continue
        is_short_wait = attempt.status == 429 and attempt.headers.get("retry-after") == "1"
        excusing = unplanned if attempt.status == 401 or is_short_wait else noticed
        if not any(fault.meets(attempt, after=_RESTARTED) for fault in excusing):
            code = attempt.code or ", ".join(attempt.unread)
            said = f"{attempt.status} {code} to {attempt.request.tenant}"
            yield f"{attempt.worker} said {said} at {attempt.sent:.2f}"
