"""A rate limiter over Redis that answers most calls from small leases, without a round trip."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError, TimeoutError as RedisTimeout

from gateway.rate_limit.base import (
    Charge,
    Decision,
    LimiterStatistics,
    RegionalLimits,
    UndividedLimits,
)
from gateway.rate_limit.bucket import TOLERANCE, refusal
from gateway.rate_limit.charges import in_region
from gateway.rate_limit.headers import lines_for
from gateway.rate_limit.lease import Lease, LeaseHold, Leases
from gateway.rate_limit.memory import MemoryRateLimiter
from gateway.rate_limit.refills import InFlightRefills, RefillWaiter, or_let_go, outcome, tenant_of
from gateway.rate_limit.refusals import refusal_here
from gateway.rate_limit.repeated_charges import AskedCharge, LeasedCharge, RepeatedCharge, is_plain
from gateway.rate_limit.script import TAKE, BucketRequest, returned, script_arguments
from gateway.redis.circuit_breaker import BreakerState, CircuitBreaker
from gateway.tasks import TaskScope
from gateway.types import CONCURRENT

_FAILURES = (RedisError, OSError)
_SWEEP = 0.25
_IDLE = 0.5
_FORGET = 60.0
_DRAIN = 2.0


class RedisRateLimiter:
    """A `RateLimiter` for a fleet; `holder` names this worker among all that use the Redis.

    Entering starts giving idle leases back, leaving gives back the rest; `redis` stays open. One
    call per tenant is in flight; who comes meanwhile waits for it, and for what it brings. While
    Redis is down or silent the lease is spent, then `local_share` of each limit (or one unit).

    `wall` is the time since the epoch; which month it is, the server decides. `shares` say what of
    a limit is this region's; by default all of it.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        holder: str,
        local_share: float,
        monotonic: Callable[[], float],
        breaker: CircuitBreaker | None = None,
        wall: Callable[[], float] = time.time,  # noqa: TID251 - months are the calendar's
        shares: RegionalLimits | None = None,
    ) -> None:
        self._shares = shares or UndividedLimits()
        self._script = redis.register_script(TAKE)
        self._holder = holder
        self._monotonic = monotonic
        self._wall = wall
        # Late is not down: while Redis answers at all, what it says is the limit.
        self._breaker = breaker or CircuitBreaker(slow=inf)
        self.local = MemoryRateLimiter(monotonic=monotonic, share=local_share, wall=wall)
        """Decides while Redis is down; its share may be changed."""
        self._leases = Leases()
        self._turns = InFlightRefills()
        self._waiting = RefillWaiter()
        self._tasks = TaskScope(drain=_DRAIN)
        self._closing = asyncio.Event()
        self._by_lease = self._by_redis = self._by_share = self._refused = 0
        self._asked = self._failures = self._lapsed = self._shadowed = 0

    async def __aenter__(self) -> Self:
        self._tasks.start(self._sweep())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._closing.set()
        await self._tasks.__aexit__(None, None, None)

    def try_admit(self, charges: Sequence[Charge]) -> Decision | None:
        """Decide from leases, or from what Redis refused a moment ago."""
        now = self._monotonic()
        leases = []
        over: tuple[Charge, ...] = ()
        for charge in charges:
            lease = self._leases.get(charge.bucket)
            amount = charge.amount
            if lease is None or not lease.is_of(charge.rule):
                return self._known_refusal(charges, now)
            if amount and (lease.available < amount or lease.usable_until <= now):
                if not (charge.rule.shadow and lease.refuses(amount, now)):
                    return self._known_refusal(charges, now)
                over += (charge,)
            leases.append(lease)
        return self._spend(charges, leases, over, now)

    def spender(self, charges: Sequence[Charge]) -> RepeatedCharge:
        """Return what takes `charges` repeatedly; see `gateway.rate_limit.repeated_charges`."""
        leases = [
            lease
            for c in charges
            if (lease := self._leases.get(c.bucket)) and lease.is_of(c.rule) and is_plain(c)
        ]
        if len(leases) < len(charges):
            return AskedCharge(charges, ask=self.try_admit)
        for charge, lease in zip(charges, leases, strict=True):
            # It may have changed since; a spender tells of one rule only.
            lease.follow(self._shares.rule(charge.bucket, charge.rule))
        lines = lines_for(tuple([lease.rule for lease in leases]))
        if not lines:
            return AskedCharge(charges, ask=self.try_admit)
        return LeasedCharge(
            charges, leases, lines=lines, monotonic=self._monotonic, took=self._took
        )

    async def admit(self, charges: Sequence[Charge]) -> Decision:
        """Decide, asking Redis where the leases do not reach."""
        while (decision := self.try_admit(charges)) is None:
            tenant = tenant_of(charges[0].bucket)
            turn = self._turns.get(tenant)
            # While one call finds out whether Redis is back, nobody else waits for it.
            is_trusted = turn is not None and self._breaker.state is BreakerState.CLOSED
            if not is_trusted and not self._breaker.allows(self._monotonic()):
                return self._admit_by_share(charges)
            if turn is None:
                return await self._ask_now(tenant, charges) or self._admit_by_share(charges)
            with self._waiting.counting(charges):
                answered = await self._in_time(tenant, charges, turn, owed=charges)
            if answered is None or not turn.done():
                return answered or self._admit_by_share(charges)
        return decision

    async def _ask_now(self, tenant: str, charges: Sequence[Charge]) -> Decision | None:
        """Ask Redis; what it grants to somebody who has gone on is given back."""
        turn = self._ask(tenant, charges)
        # Redis takes the charges; only what it holds is given back.
        owed = charges if charges[0].hold else ()
        return await or_let_go(turn, self._in_time(tenant, charges, turn, owed=owed))

    async def _in_time(
        self,
        tenant: str,
        charges: Sequence[Charge],
        turn: asyncio.Future[Decision | None],
        *,
        owed: Sequence[Charge],
    ) -> Decision | None:
        """Return what `turn` brings, or what the local share allows where that takes too long.

        Who is far from every limit waits but a moment; what is `owed` then is asked for later.
        """
        in_haste = self._leases.may_run_ahead(charges, now := self._monotonic())
        is_late = await self._turns.is_late(tenant, now, in_haste=in_haste)
        if is_late and in_haste:
            in_haste = self._leases.may_run_ahead(charges, now := self._monotonic())
            # Others were quicker: there is no more to run ahead with.
            is_late = in_haste or await self._turns.is_late(tenant, now, in_haste=False)
        if is_late:
            decision = self.local.try_admit(in_region(charges, self._shares))
            if decision.allowed:
                self._by_share += 1
                self._leases.run_ahead(owed)
                return decision
        return await outcome(turn)

    async def give_back(self, *, idle: float) -> None:
        """Give back what was not spent for `idle` seconds or is about to lapse."""
        now = self._monotonic()
        returns: dict[str, list[tuple[str, Lease]]] = {}
        for bucket, lease in list(self._leases.items()):
            units = lease.usable(now)
            if not units and not lease.reserved:
                self._forget(bucket, lease, now)
            elif (units and self._is_idle(lease, now, idle)) or (
                lease.usable_until - now < 2 * _SWEEP
            ):
                returns.setdefault(tenant_of(bucket), []).append((bucket, lease))
        turns = [
            self._take(tenant, [returned(bucket, lease, now) for bucket, lease in leases])
            for tenant, leases in returns.items()
            if tenant not in self._turns
        ]
        if turns:
            await asyncio.wait(turns)

    def statistics(self) -> LimiterStatistics:
        """Return counts for metrics and tests."""
        return LimiterStatistics(
            admitted_by_lease=self._by_lease,
            admitted_by_redis=self._by_redis,
            admitted_by_share=self._by_share,
            refused=self._refused,
            shadowed=self._shadowed,
            asked=self._asked,
            failures=self._failures,
            leased=sum(lease.available for lease in self._leases.values()),
            reserved=sum(lease.reserved for lease in self._leases.values()),
            lapsed=self._lapsed,
            breaker=self._breaker.state,
            breaker_opened=self._breaker.opened,
        )

    def _spend(
        self,
        charges: Sequence[Charge],
        leases: Sequence[Lease],
        over: Sequence[Charge],
        now: float,
    ) -> Decision:
        """Take `charges` from leases that have them; those `over` are only noted."""
        running_low = False
        policies = []
        for charge, lease in zip(charges, leases, strict=True):
            if charge in over:
                continue
            amount = charge.amount
            lease.available -= amount
            lease.spent += amount
            lease.used_at = now
            if lease.available < lease.low:
                running_low = True
            if not charge.rule.shadow:
                policies.append(lease.state(now))
        self._took(charges, leases, now, running_low)
        self._shadowed += len(over)
        return Decision(
            allowed=True,
            policies=tuple(policies),
            shadowed=tuple([charge.rule for charge in over]) if over else (),
            holds=self._holds(charges, leases, over),
        )

    def _took(
        self,
        charges: Sequence[Charge],
        leases: Sequence[Lease],
        now: float,
        running_low: bool,  # noqa: FBT001 - positional, as this is part of every answer
    ) -> None:
        self._by_lease += 1
        if running_low:
            self._renew(charges, leases, now)

    def _known_refusal(self, charges: Sequence[Charge], now: float) -> Decision | None:
        """Refuse what no bucket can hold, and what Redis would only refuse again."""
        if not self._leases.refuse(charges, now):
            return None
        charges = in_region(charges, self._shares)
        self._refused += 1
        for charge in charges:
            self._shares.record_demand(charge.bucket, charge.rule, charge.amount)
        return refusal_here(charges, [self._leases.get(c.bucket) for c in charges], now)

    def _is_idle(self, lease: Lease, now: float, idle: float) -> bool:
        # Places for work that nobody holds are for whoever comes, at any worker.
        return lease.rule.unit == CONCURRENT or now - lease.used_at >= idle

    def _holds(
        self, charges: Sequence[Charge], leases: Sequence[Lease], over: Sequence[Charge] = ()
    ) -> tuple[LeaseHold, ...]:
        if not charges or not charges[0].hold:  # all of a call are, or none
            return ()
        return tuple(
            LeaseHold(
                lease,
                0 if charge in over else charge.amount,
                now=self._monotonic,
                settled=partial(self._settled, charge.bucket),
            )
            for charge, lease in zip(charges, leases, strict=True)
        )

    def _settled(self, bucket: str, lease: Lease) -> None:
        """Give a place back at once: there is no telling how long nobody here wants it."""
        tenant = tenant_of(bucket)
        if lease.rule.unit != CONCURRENT or tenant in self._turns or self._closing.is_set():
            return  # the next turn has it, or the next sweep
        now = self._monotonic()
        _ = self._take(tenant, [returned(bucket, lease, now)])

    def _admit_by_share(self, charges: Sequence[Charge]) -> Decision:
        decision = self.local.try_admit(in_region(charges, self._shares))
        if decision.allowed:
            self._by_share += 1
        else:
            self._refused += 1
        return decision

    def _ask(self, tenant: str, charges: Sequence[Charge]) -> asyncio.Future[Decision | None]:
        """Ask for `charges` and leases; what is left of the old ones goes back with it."""
        now = self._monotonic()
        parts = []
        for charge in charges:
            lease = self._leases.of(charge)
            lease.asked_for = charge.rule
            want = self._waiting.units(charge.bucket) + lease.wanted(charge.amount, now)
            want += lease.owed
            kept = lease.keep(now)
            back = lease.surrender(now)
            parts.append(BucketRequest(charge=charge, lease=lease, want=want, kept=kept, back=back))
        return self._take(tenant, parts)

    def _renew(self, charges: Sequence[Charge], leases: Iterable[Lease], now: float) -> None:
        """Ask for more before the lease is used up, which goes on being spent meanwhile."""
        tenant = tenant_of(charges[0].bucket)
        if tenant in self._turns or self._breaker.state is not BreakerState.CLOSED:
            return
        parts = []
        for charge, lease in zip(charges, leases, strict=True):
            lease.low = 0
            usable = lease.usable(now)
            kept = usable + lease.keep(now)
            want = max(0, lease.wanted(0, now) - usable) + lease.owed
            nothing = Charge(rule=charge.rule, bucket=charge.bucket, amount=0)
            parts.append(BucketRequest(charge=nothing, lease=lease, want=want, kept=kept))
        _ = self._take(tenant, parts)

    def _take(self, tenant: str, parts: list[BucketRequest]) -> asyncio.Future[Decision | None]:
        """Run the script; the future is settled with its decision, `None` where it failed."""
        for part in parts:
            part.lease.follow(self._shares.rule(part.charge.bucket, part.charge.rule))
        turn = self._turns.begin(tenant, self._monotonic())
        self._tasks.start(self._call(tenant, parts))
        return turn

    async def _call(self, tenant: str, parts: list[BucketRequest]) -> None:
        decision: Decision | None = None
        asked_at = self._monotonic()
        try:
            self._asked += 1
            keys = [part.charge.bucket for part in parts]
            arguments = script_arguments(parts, holder=self._holder, wall=self._wall())
            answer = await self._script(keys=keys, args=arguments)
            now = self._monotonic()
            self._turns.answered(now - asked_at)
            self._breaker.succeeded(now=now, duration=now - asked_at)
            decision = self._decide(parts, answer, asked_at=asked_at, now=now)
        except _FAILURES as error:
            self._failures += 1
            self._lapsed += sum(part.back for part in parts)
            # Silence costs each who finds out a time-out.
            is_silent = isinstance(error, TimeoutError | RedisTimeout)
            self._breaker.failed(now=self._monotonic(), is_certain=is_silent)
        finally:
            self._turns.end(tenant, decision)

    def _decide(
        self, parts: list[BucketRequest], answer: list[bytes | int], *, asked_at: float, now: float
    ) -> Decision:
        allowed = bool(answer[0])
        charges = [part.charge for part in parts]
        levels, all_ends, over = [], [], []
        for index, part in enumerate(parts):
            units, level, ends = map(float, answer[1 + 3 * index : 4 + 3 * index])
            charge, amount, lease = part.charge, part.charge.amount, part.lease
            levels.append(level)
            all_ends.append(ends)
            taken = amount if allowed and units >= 0 else 0
            wanted = lease.spent if allowed else lease.spent + amount
            self._shares.record_demand(charge.bucket, charge.rule, wanted, level=level, ends=ends)
            lease.answered(level=level, amount=taken, now=now, ends=ends)
            if units < 0:
                over.append(part.charge)
            if units < 0 or (not allowed and amount > level + TOLERANCE):
                lease.refused(amount, level=level, now=now)
            # Also where nothing was granted: what is kept is held until then.
            lease.granted(max(0, int(units)), asked_at=asked_at, now=now)
        if not allowed:
            self._refused += 1
            return refusal(in_region(charges, self._shares), levels, ends=all_ends)
        if any(charge.amount for charge in charges):
            self._by_redis += 1
        self._shadowed += len(over)
        shown = [part.lease.state(now) for part in parts if not part.charge.rule.shadow]
        return Decision(
            allowed=True,
            policies=tuple(shown),
            shadowed=tuple(charge.rule for charge in over),
            holds=self._holds(charges, [part.lease for part in parts], over),
        )

    def _forget(self, bucket: str, lease: Lease, now: float) -> None:
        self._lapsed += lease.available
        lease.available = 0
        if now - max(lease.at, lease.used_at) > _FORGET and tenant_of(bucket) not in self._turns:
            del self._leases[bucket]

    async def _sweep(self) -> None:
        """Give idle leases back until closing, then all of them."""
        while not self._closing.is_set():
            try:
                await asyncio.wait_for(self._closing.wait(), _SWEEP)
            except TimeoutError:
                await self.give_back(idle=_IDLE)
        while turns := self._turns.under_way():
            await asyncio.wait(turns)
        await self.give_back(idle=0.0)
