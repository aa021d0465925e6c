"""Runs rounds of failovers over a fleet under load, and compares answers, limits and ledger."""

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator

import msgspec

from gateway.types import Rule
from loadtests.chaos_sentinel import LedgerComparison, compare
from loadtests.fleet.faults import Fault, fail_over
from loadtests.fleet.judging import OFFERED, RoundResult, TenantWindows
from loadtests.fleet.observing import Answered, LedgerView, Operator, ReadinessWatch, running
from loadtests.fleet.system import GATEWAYS, RULES, Fleet, key_of
from loadtests.open_loop import Answer, open_loop
from loadtests.windows import AdmittedRequest, bound, most_over_the_limit
from testing.waiting import eventually, until

_FREE_RATE = 40.0
_CONNECTIONS = 4
_QUIET, _DURATION = 3.0, 18.0
"""Seconds of load before the first fault of a round, and in all."""
_APART = 6.0
"""Seconds between the two faults of every second round; else they come together."""
_OK, _REFUSED = 200, 429
_SETTLED, _AFTERWARDS = 60.0, 3.0
_SAME = b'{"model":"stub","input":"a gorgeous, witty, seductive movie"}'


class FleetRun:
    """Collects what rounds over `fleet` show."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._view = LedgerView(fleet)
        self._answered: Counter[Answered] = Counter()
        self._confirmed: list[str] = []

    async def round(self, number: int, fault: Fault) -> RoundResult:
        """Fail PostgreSQL and Redis over once each, under load."""
        # Every bucket is full then, so that no unit missing in one hides an admission too many.
        await asyncio.sleep(max(rule.window for rule in RULES))
        operator = Operator(self._fleet, round_number=number)
        readiness = ReadinessWatch(self._fleet)
        redis_after = _APART * (number % 2)
        async with running(operator.run(), readiness.run()):
            answers, ledger, redis_away = await asyncio.gather(
                self._load(number), self._fail_ledger(fault), self._fail_redis(redis_after)
            )
        self._confirmed += operator.confirmed
        every = [one for tenant in answers for one in tenant]
        self._answered.update((_id(one), one.status) for one in every if one.status)
        ledger_away, billed_after = ledger
        return RoundResult(
            fault=fault,
            ledger_away=ledger_away,
            billed_after=billed_after,
            redis_away=redis_away,
            answered=sum(one.status == _OK for one in every),
            refused=sum(one.status == _REFUSED for one in every),
            free_refused=sum(one.status == _REFUSED for one in answers[-1]),
            failed=sum(one.status not in (_OK, _REFUSED) for one in every),
            slowest_before=max(one.latency for one in every if one.due < _QUIET),
            slowest=max(one.latency for one in every if one.due >= _QUIET),
            windows=[
                TenantWindows(rule=rule, over=_over(tenant, rule), share=_share(tenant, rule))
                for rule, tenant in zip(RULES, answers, strict=False)
            ],
            changes=len(operator.confirmed),
            changes_refused=operator.refused,
            changes_wrong=operator.wrong,
            slowest_change=operator.slowest,
            unready=readiness.unready,
            without_ledger=readiness.without_ledger,
        )

    async def compare(self) -> tuple[LedgerComparison, list[str]]:
        """Compare answers with the ledger once it has them; return lost changes as well."""

        async def has_all() -> bool:
            return self._answered <= await asyncio.to_thread(self._view.billed)

        with contextlib.suppress(AssertionError):
            await eventually(has_all, within=_SETTLED, every=0.5)
        await asyncio.sleep(_AFTERWARDS)
        billed = await asyncio.to_thread(self._view.billed)
        tenants = await asyncio.to_thread(self._view.tenants)
        lost = [tenant for tenant in self._confirmed if tenants[tenant] != 1]
        return compare(self._answered, billed), lost

    async def _load(self, number: int) -> list[list[Answer]]:
        """Send each tenant's requests to all gateways; return the answers by tenant."""
        began = time.perf_counter()
        rates = [OFFERED * rule.capacity / rule.window for rule in RULES]
        bodies = [iter(lambda: _SAME, b"") for _ in RULES]
        sources = [*zip(rates, bodies, strict=True), (_FREE_RATE, _new_texts(number))]
        return [
            list(itertools.chain.from_iterable(tenant))
            for tenant in await asyncio.gather(
                *(
                    self._tenant(tenant, rate, texts, began=began)
                    for tenant, (rate, texts) in enumerate(sources)
                )
            )
        ]

    async def _tenant(
        self, tenant: int, rate: float, bodies: Iterator[bytes], *, began: float
    ) -> list[list[Answer]]:
        sending = [
            open_loop(
                gateway.target(key_of(tenant)),
                bodies,
                rate=rate / GATEWAYS,
                duration=_DURATION,
                seed=GATEWAYS * tenant + place,
                connections=_CONNECTIONS,
                since=began,
            )
            for place, gateway in enumerate(self._fleet.gateways)
        ]
        return await asyncio.gather(*sending)

    async def _fail_ledger(self, fault: Fault) -> tuple[float, float]:
        """Return the seconds until there was a new primary, and until it had later events."""
        await asyncio.sleep(_QUIET)
        began = time.monotonic()
        old = self._fleet.ledger.primary
        struck: list[float] = []
        failover = asyncio.create_task(
            asyncio.to_thread(
                fail_over, self._fleet.ledger, fault, lambda: struck.append(time.time())
            )
        )

        async def bills() -> bool:
            if failover.done():
                failover.result()
            return self._fleet.ledger.primary is not old and await asyncio.to_thread(
                self._view.has_event_after, struck[0]
            )

        await eventually(bills)
        billed_after = time.monotonic() - began
        times = await failover
        return times.promoted - times.began, billed_after

    async def _fail_redis(self, after: float) -> float:
        """Kill the primary, and let it come back as a replica; return the seconds without one."""
        await asyncio.sleep(_QUIET + after)
        state = self._fleet.state
        old = state.kill_primary()
        killed = time.monotonic()
        await until(lambda: state.current() is not None, what="a new primary")
        away = time.monotonic() - killed
        await asyncio.to_thread(state.rejoin, old)
        return away


def _over(answers: list[Answer], rule: Rule) -> float:
    admitted = [AdmittedRequest(one.sent, one.came) for one in answers if one.status == _OK]
    return most_over_the_limit(admitted, rule)


def _share(answers: list[Answer], rule: Rule) -> float:
    return sum(one.status == _OK for one in answers) / bound(rule, _DURATION)


def _id(answer: Answer) -> str:
    return answer.head.partition(b"x-request-id:")[2].split(b"\r\n", 1)[0].strip().decode()


def _new_texts(number: int) -> Iterator[bytes]:
    for place in itertools.count():
        yield msgspec.json.encode({"model": "stub", "input": f"new in {number}: {place}"})
