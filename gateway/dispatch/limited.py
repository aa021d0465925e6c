"""Reserves what items may cost before they run, and settles the limits by what they cost."""

import asyncio
from collections.abc import Sequence

import msgspec

from sluicegate.gateway.dispatch.work import (
    OpenItem,
    Work,
    WorkRunner,
    are_open,
    run,
    settle_failed,
)
from sluicegate.gateway.errors import DeadlineExceeded
from sluicegate.gateway.rate_limit.base import RateLimiter
from sluicegate.gateway.rate_limit.charges import WorkLimits
from sluicegate.gateway.rate_limit.reservations import Reservation, estimate, reserve
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.tasks import TaskStarter
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import WORK_UNITS, ItemFailure, Principal

_LATE = ItemFailure.of(DeadlineExceeded.during("the check of the limits"))


class _Spending(msgspec.Struct, eq=False):
    """Adds up what items cost, and settles their reservation once the last one has ended."""

    reservation: Reservation
    left: int
    rows: int = 0
    tokens: int = 0

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemWaiter`."""
        for item in items:
            if item.outcome is not None:
                self.rows += item.outcome.rows
                self.tokens += item.outcome.tokens
        self.left -= len(items)
        if not self.left:
            self.reservation.settle(rows=self.rows, tokens=self.tokens)


class LimitedRunner:
    """Wraps a `WorkRunner`: items that are over a limit are settled as refused, and not run.

    Refreshes and other work without a principal are not limited.
    """

    def __init__(
        self,
        *,
        runner: WorkRunner,
        limiter: RateLimiter,
        runtimes: RuntimeStore,
        tasks: TaskStarter,
        tracer: Tracer,
    ) -> None:
        self._runner = runner
        self.cancel = runner.cancel
        """See `WorkRunner.cancel`."""
        self._tasks = tasks
        self._limiter = limiter
        self._runtimes = runtimes
        self._tracer = tracer

    def start(self, items: Sequence[OpenItem]) -> None:
        """See `WorkRunner.start`."""
        work = items[0].work
        principal = work.principal
        if principal is None or not self._may_cost(work, principal):
            self._runner.start(items)
        else:
            left = list(items)
            run(self._tasks, self._reserve_and_start(left, work, principal), left)

    async def _reserve_and_start(
        self, left: list[OpenItem], work: Work, principal: Principal
    ) -> None:
        """Start the items of `left`, and take them out of it, once their cost is reserved."""
        with self._tracer.span("limits of work", parent=work.traceparent) as span:
            reservation = await self._reserve(left, work, principal)
            if reservation.refusal is not None:
                span.fail(reservation.refusal.code)
        if reservation.refusal is not None:
            settle_failed(left, reservation.refusal)
            return
        items = are_open(left)
        if not items:  # all were cancelled meanwhile
            reservation.settle(rows=0, tokens=0)
            return
        spending = _Spending(reservation, len(items))
        for item in items:
            item.waiters.append(spending)
        self._runner.start(items)
        left.clear()

    async def _reserve(
        self, items: Sequence[OpenItem], work: Work, principal: Principal
    ) -> Reservation:
        info = work.model.info
        bodies = [item.body for item in items]
        most = estimate(work.task, work.parameters, bodies, limits=info.row_limits)
        try:
            async with asyncio.timeout_at(work.deadline):
                return await reserve(
                    self._limiter, self._rules(work), principal, model=info.name, most=most
                )
        except TimeoutError:
            return Reservation(refusal=_LATE)

    def _may_cost(self, work: Work, principal: Principal) -> bool:
        document = self._runtimes.current.document
        entry, limits = document.models.get(work.model.info.name), document.limits
        if entry is not None and entry.limits:
            return True
        for own in (principal.tenant_rules or limits.tenant, principal.key_rules or limits.key):
            for rule in own:
                if rule.unit in WORK_UNITS:
                    return True
        return False

    def _rules(self, work: Work) -> WorkLimits:
        document = self._runtimes.current.document
        entry = document.models.get(work.model.info.name)
        return WorkLimits(
            tenant=document.limits.tenant,
            key=document.limits.key,
            model=entry.limits if entry is not None else (),
        )
