"""Limits rates across workers with Redis.

Workers lease a few units at a time, which saves most calls to Redis.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Self

from msgspec.structs import replace
from redis.exceptions import RedisError

from sluicegate.gateway.rate_limit.base import (
    Charge,
    Decision,
    LimiterStatistics,
    PolicyState,
    RegionalLimits,
    RepeatedCharge,
    UndividedLimits,
)
from sluicegate.gateway.rate_limit.bucket import TOLERANCE, refusal
from sluicegate.gateway.rate_limit.charges import in_region
from sluicegate.gateway.rate_limit.headers import lines_for
from sluicegate.gateway.rate_limit.lease import Lease, LeaseReservation, Leases
from sluicegate.gateway.rate_limit.lease_calls import (
    PATIENCE,
    AwaitedUnits,
    LeaseCall,
    LeaseCalls,
    give_back_reservations,
    tenant_of,
)
from sluicegate.gateway.rate_limit.memory import MemoryRateLimiter
from sluicegate.gateway.rate_limit.repeated_charges import DelegatedCharge, LeasedCharge, is_plain
from sluicegate.gateway.rate_limit.script import (
    TAKE,
    BucketRequest,
    full_request,
    renewal,
    returning,
    script_arguments,
)
from sluicegate.gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from sluicegate.gateway.redis.scripts import ScriptClient
from sluicegate.gateway.redis.timeouts import is_timeout
from sluicegate.gateway.tasks import TaskScope, pause
from sluicegate.gateway.types import CONCURRENT

_Reply = list[bytes | int]
_FAILURES = (RedisError, OSError)
_SWEEP = 0.25
_IDLE = 0.5
_FORGET = 60.0
_DRAIN = 2.0


class RedisRateLimiter:
    """Implements `RateLimiter` for all workers that share a Redis.

    `holder` identifies this worker. While the limiter's context lasts, a task gives idle leases
    back. On exit, the limiter gives back all leases and leaves `redis` open. Each tenant has at
    most one call to Redis in flight, and the tenant's other callers wait for its result. While
    Redis is down or does not respond, the worker first spends its leases. After that, the worker
    decides alone. It then admits the fraction `local_share` of each limit, but at least one unit.

    `wall` returns the seconds since the epoch, from which the worker computes when periods end.
    Redis compares these ends with its own clock to decide which period it is. `shares` gives this
    region's share of each limit; the default is the full limit.

    A caller near a limit waits for Redis for at most `patience` seconds. If Redis was slow, the
    caller waits longer: up to four times the duration of the slowest recent response.
    """

    def __init__(
        self,
        *,
        redis: ScriptClient,
        holder: str,
        local_share: float,
        monotonic: Callable[[], float],
        breaker: CircuitBreaker | None = None,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - quotas follow the calendar
        shares: RegionalLimits | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._shares = shares or UndividedLimits()
        self._script = redis.register_script(TAKE)
        self._holder = holder
        self._monotonic = monotonic
        self._wall = wall
        # With an infinite `slow`, a slow Redis does not open the circuit breaker, because the
        # decisions of Redis apply as long as it responds.
        self._breaker = breaker or CircuitBreaker(slow=inf)
        self.local = MemoryRateLimiter(monotonic=monotonic, fraction=local_share, wall=wall)
        """The limiter that decides while Redis is down. Callers can change its fraction."""
        self._leases = Leases()
        self._calls = LeaseCalls(patience=patience)
        self._awaited = AwaitedUnits()
        self._tasks = TaskScope(drain=_DRAIN)
        self._closing = asyncio.Event()
        self._counts = LimiterStatistics()

    async def __aenter__(self) -> Self:
        self._tasks.start(self._sweep())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closing.set()
        await self._tasks.__aexit__(None, None, None)

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Admit from leases or repeat a recent refusal; return `None` if Redis must decide."""
        return self._admit_leased(charges) or self._refusal(charges, self._monotonic())

    def repeated_charge(self, charges: Sequence[Charge]) -> RepeatedCharge:
        """Return an object that takes `charges` each time it is called."""
        leases = [
            lease
            for c in charges
            if (lease := self._leases.get(c.bucket)) and lease.is_under(c.rule) and is_plain(c)
        ]
        if len(leases) < len(charges):
            return DelegatedCharge(charges, try_admit=self._admit_leased)
        for charge, lease in zip(charges, leases, strict=True):
            # A `LeasedCharge` formats header lines for its leases' rules, so their rules are
            # updated first.
            lease.set_rule(self._shares.rule(charge.bucket, charge.rule))
        shown = tuple([lease.rule for lease in leases if not lease.rule.shadow])
        lines = lines_for(shown)
        if shown and not lines:
            return DelegatedCharge(charges, try_admit=self._admit_leased)
        return LeasedCharge(
            charges,
            leases,
            lines=lines,
            monotonic=self._monotonic,
            counts=self._counts,
            renew=self._renew,
        )

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, and call Redis if the leases do not suffice."""
        while (decision := self.try_admit(charges)) is None:
            tenant = tenant_of(charges[0].bucket)
            call = self._calls.get(tenant)
            # While the circuit breaker is not closed, the call in flight is a probe of Redis. No
            # other caller waits for a probe.
            is_trusted = call is not None and self._breaker.state is BreakerState.CLOSED
            if not is_trusted and not self._breaker.allows(self._monotonic()):
                return self._admit_locally(charges)
            if call is None:
                return await self._call_now(tenant, charges) or self._admit_locally(charges)
            with self._awaited.counting(charges):
                answered = await self._in_time(tenant, charges, call, overdraft=charges)
            if answered is None or not call.done():
                return answered or self._admit_locally(charges)
        return decision

    async def _call_now(self, tenant: str, charges: Sequence[Charge]) -> Decision | None:
        """With one call, take `charges`, give the old leases back, and request new leases.

        If the caller stops waiting, the units that the call reserved for the caller are given back.
        """
        now = self._monotonic()
        requests = [
            full_request(c, self._leases.of(c), waiting=self._awaited[c.bucket], now=now)
            for c in charges
        ]
        call = self._take(tenant, requests)
        # If the call spends units, Redis charges them even if its response is late. If the call
        # reserves units and is late, `give_back_reservations` gives them back. The units that this
        # worker spends meanwhile are then an overdraft.
        overdraft = charges if charges[0].is_reserved else ()
        decision = None
        try:
            decision = await self._in_time(tenant, charges, call, overdraft=overdraft)
        finally:
            # A cancellation may arrive in the same iteration of the event loop in which the call
            # ends.
            if decision is None or not call.done():
                call.add_done_callback(give_back_reservations)
        return decision

    async def _in_time(
        self,
        tenant: str,
        charges: Sequence[Charge],
        call: LeaseCall,
        *,
        overdraft: Sequence[Charge],
    ) -> Decision | None:
        """Return the result of `call`, or the local decision if the call takes too long.

        If all charges are far below their limits, the caller waits only a moment, and then
        overdraws the leases. The charges in `overdraft` are deducted from the next grant.
        """
        can_overdraw = self._leases.may_overdraw(charges, now := self._monotonic())
        is_late = await self._calls.is_late(tenant, now, can_overdraw=can_overdraw)
        if is_late and can_overdraw:
            can_overdraw = self._leases.may_overdraw(charges, now := self._monotonic())
            # Other callers may have used up the overdraft in the meantime.
            is_late = can_overdraw or await self._calls.is_late(tenant, now, can_overdraw=False)
        if is_late and (decision := self._decide_locally(charges)).allowed:
            self._leases.overdraw(overdraft)
            return decision
        # `wait` keeps a cancellation from reaching the call, for which other callers wait, too.
        await asyncio.wait((call,))
        return call.result()

    async def give_back(self, *, idle: float) -> None:
        """Give back units that were idle for `idle` seconds, or whose lease is about to expire."""
        now = self._monotonic()
        returns: dict[str, list[tuple[str, Lease]]] = {}
        for bucket, lease in list(self._leases.items()):
            if not lease.usable(now) and not lease.reserved:
                self._expire(bucket, lease, now)
            elif lease.is_idle(now, idle) or lease.usable_until - now < 2 * _SWEEP:
                returns.setdefault(tenant_of(bucket), []).append((bucket, lease))
        calls = [
            self._take(tenant, [returning(bucket, lease, now) for bucket, lease in leases])
            for tenant, leases in returns.items()
            if tenant not in self._calls
        ]
        if calls:
            await asyncio.wait(calls)

    def statistics(self) -> LimiterStatistics:
        """Return counts for metrics and tests."""
        return replace(
            self._counts,
            leases=len(self._leases),
            leased=sum(lease.available for lease in self._leases.values()),
            reserved=sum(lease.reserved for lease in self._leases.values()),
            breaker=self._breaker.state,
            breaker_opened=self._breaker.opened,
        )

    def _admit_leased(self, charges: Sequence[Charge]) -> Decision | None:
        """Admit `charges` if their leases suffice; otherwise take nothing and return `None`."""
        now = self._monotonic()
        leases = []
        over: tuple[Charge, ...] = ()
        for charge in charges:
            lease = self._leases.get(charge.bucket)
            amount = charge.amount
            if lease is None or not lease.is_under(charge.rule):
                return None
            if amount and (lease.available < amount or lease.usable_until <= now):
                if not (charge.rule.shadow and lease.refuses(amount, now)):
                    return None
                over += (charge,)
            leases.append(lease)
        return self._admit_from_leases(charges, leases, over, now)

    def _admit_from_leases(
        self, charges: Sequence[Charge], leases: Sequence[Lease], over: Sequence[Charge], now: float
    ) -> Decision:
        """Take `charges` from their leases, except the charges in `over`.

        The charges in `over` exceed limits in shadow mode, so they are only counted.
        """
        is_low = False
        policies = []
        for charge, lease in zip(charges, leases, strict=True):
            if charge in over:
                continue
            remaining, reset = lease.spend(charge.amount, now)
            if lease.available < lease.renew_below:
                is_low = True
            if not charge.rule.shadow:
                policies.append(PolicyState(lease.rule, remaining, reset))
        self._counts.admitted_by_lease += 1
        if is_low:
            self._renew(charges, leases, now)
        self._counts.shadowed += len(over)
        return Decision(
            allowed=True,
            policies=tuple(policies),
            shadowed=tuple([charge.rule for charge in over]) if over else (),
            reservations=self._reserve(charges, leases, over),
        )

    def _refusal(self, charges: Sequence[Charge], now: float) -> Decision | None:
        """Refuse charges that are larger than a whole limit, or that Redis refused a moment ago.

        Return `None` if there are no such charges.
        """
        if not self._leases.must_refuse(charges, now):
            return None
        charges = in_region(charges, self._shares)
        self._counts.refused += 1
        for charge in charges:
            self._shares.record_demand(charge.bucket, charge.rule, charge.amount)
        return self._leases.refusal(charges, now)

    def _reserve(
        self, charges: Sequence[Charge], leases: Sequence[Lease], over: Sequence[Charge] = ()
    ) -> tuple[LeaseReservation, ...]:
        if not charges or not charges[0].is_reserved:  # a request reserves all its charges or none
            return ()
        return tuple(
            LeaseReservation(
                lease,
                0 if charge in over else charge.amount,
                now=self._monotonic,
                on_settled=partial(self._on_settled, charge.bucket, lease.rule.capacity),
            )
            for charge, lease in zip(charges, leases, strict=True)
        )

    def _on_settled(self, bucket: str, capacity: int, lease: Lease) -> None:
        """Give settled units back to Redis immediately if this worker should not spend them.

        Another worker may need a unit of a limit on concurrent requests. If the limit's `capacity`
        was lowered since the units were reserved, Redis must deduct the excess from them first.
        """
        tenant = tenant_of(bucket)
        is_spendable = lease.rule.unit != CONCURRENT and lease.rule.capacity >= capacity
        if is_spendable or tenant in self._calls or self._closing.is_set():
            return  # the next call or the next sweep gives the units back
        _ = self._take(tenant, [returning(bucket, lease, self._monotonic())])

    def _admit_locally(self, charges: Sequence[Charge]) -> Decision:
        if not (decision := self._decide_locally(charges)).allowed:
            self._counts.refused += 1
        return decision

    def _decide_locally(self, charges: Sequence[Charge]) -> Decision:
        self._counts.local_decisions += 1
        decision = self.local.try_admit(in_region(charges, self._shares))
        self._counts.admitted_by_share += decision.allowed
        return decision

    def _renew(self, charges: Sequence[Charge], leases: Iterable[Lease], now: float) -> None:
        """Request more units in advance, before the leases run out. Nobody waits for the result."""
        tenant = tenant_of(charges[0].bucket)
        if tenant in self._calls or self._breaker.state is not BreakerState.CLOSED:
            return
        pairs = zip(charges, leases, strict=True)
        _ = self._take(tenant, [renewal(charge, lease, now) for charge, lease in pairs])

    def _take(self, tenant: str, requests: list[BucketRequest]) -> LeaseCall:
        """Run the script; return a future of the decision, or of `None` if the script fails."""
        for request in requests:
            request.lease.set_rule(self._shares.rule(request.charge.bucket, request.charge.rule))
        call = self._calls.begin(tenant, self._monotonic())
        self._tasks.start(self._call(tenant, requests))
        return call

    async def _call(self, tenant: str, requests: list[BucketRequest]) -> None:
        decision: Decision | None = None
        sent_at = self._monotonic()
        try:
            self._counts.asked += 1
            keys = [request.charge.bucket for request in requests]
            arguments = script_arguments(requests, holder=self._holder, wall=self._wall())
            reply = await self._script(keys=keys, args=arguments)
            now = self._monotonic()
            self._calls.record_answer(now - sent_at)
            self._breaker.succeeded(now=now, duration=now - sent_at)
            decision = self._decide(requests, reply, sent_at=sent_at, now=now)
        except _FAILURES as error:
            self._counts.failures += 1
            self._counts.lapsed += sum(request.back for request in requests)
            # One timeout opens the circuit breaker, because otherwise further calls would have to
            # time out, too.
            self._breaker.failed(now=self._monotonic(), is_certain=is_timeout(error))
        finally:
            self._calls.end(tenant, decision)

    def _decide(
        self, requests: list[BucketRequest], reply: _Reply, *, sent_at: float, now: float
    ) -> Decision:
        allowed = bool(reply[0])
        charges = [request.charge for request in requests]
        levels, all_ends, over = [], [], []
        for index, request in enumerate(requests):
            units, level, ends = map(float, reply[1 + 3 * index : 4 + 3 * index])
            charge, amount, lease = request.charge, request.charge.amount, request.lease
            levels.append(level)
            all_ends.append(ends)
            taken = amount if allowed and units >= 0 else 0
            wanted = lease.spent if allowed else lease.spent + amount
            self._shares.record_demand(charge.bucket, charge.rule, wanted, level=level, ends=ends)
            lease.record_level(level=level, amount=taken, now=now, ends=ends)
            if units < 0:
                over.append(request.charge)
            if units < 0 or (not allowed and amount > level + TOLERANCE):
                lease.record_refusal(amount, level=level, now=now)
            # This call is needed even without granted units, because it extends the lease of the
            # units that the worker kept.
            lease.add_grant(max(0, int(units)), sent_at=sent_at, now=now)
        if not allowed:
            self._counts.refused += 1
            return refusal(in_region(charges, self._shares), levels, ends=all_ends)
        if any(charge.amount for charge in charges):
            self._counts.admitted_by_redis += 1
        self._counts.shadowed += len(over)
        shown = [request.lease.state(now) for request in requests if not request.charge.rule.shadow]
        return Decision(
            allowed=True,
            policies=tuple(shown),
            shadowed=tuple(charge.rule for charge in over),
            reservations=self._reserve(charges, [request.lease for request in requests], over),
        )

    def _expire(self, bucket: str, lease: Lease, now: float) -> None:
        self._counts.lapsed += lease.available
        lease.available = 0
        if now - max(lease.at, lease.used_at) > _FORGET and tenant_of(bucket) not in self._calls:
            del self._leases[bucket]

    async def _sweep(self) -> None:
        """Give idle leases back regularly until this limiter closes; then give back all leases."""
        while not self._closing.is_set():
            await pause(self._closing, _SWEEP)
            if not self._closing.is_set():
                await self.give_back(idle=_IDLE)
        while calls := self._calls.values():
            await asyncio.wait(calls)
        await self.give_back(idle=0.0)
