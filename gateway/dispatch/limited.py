"""Reserves what work may cost before it runs, and settles the limits by what it cost."""

import asyncio

from msgspec.structs import replace

from gateway.dispatch.work import (
    Outcomes,
    Settle,
    StartedParts,
    StartedWork,
    Work,
    WorkRunner,
    finish,
)
from gateway.dispatch.work_task import WorkTask
from gateway.errors import DeadlineExceeded
from gateway.rate_limit.base import RateLimiter
from gateway.rate_limit.charges import WorkLimits
from gateway.rate_limit.reservations import Reservation, estimate, reserve
from gateway.runtime.store import RuntimeStore
from gateway.tasks import TaskStarter
from gateway.telemetry.tracing import Tracer
from gateway.types import WORK_UNITS, ItemFailure, ItemOutcome, Principal, Source

_LATE = ItemFailure.of(DeadlineExceeded.during("the check of the limits"))


class LimitedRunner:
    """Wraps a `WorkRunner`: work that is over a limit is settled as refused, and not run.

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
        self._tasks = tasks
        self._limiter = limiter
        self._runtimes = runtimes
        self._tracer = tracer

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """Settle all of `work`; items that were gathered are held and refused one by one."""
        principal = work.principal
        if principal is None or not self._may_cost(work, principal):
            return self._runner.start(
                work, deadline=deadline, settle=settle, traceparent=traceparent
            )
        if work.is_gathered and len(work.items) > 1:
            return StartedParts(
                [
                    self.start(
                        replace(work, items=(item,)),
                        deadline=deadline,
                        settle=settle,
                        traceparent=traceparent,
                    )
                    for item in work.items
                ]
            )
        task = WorkTask(work, settle)
        rules = self._rules(work)
        steps = self._run_limited(rules, principal, work, deadline, task.settle, traceparent)
        return task.run(self._tasks, steps)

    async def _run_limited(
        self,
        rules: WorkLimits,
        principal: Principal,
        work: Work,
        deadline: float,
        settle: Settle,
        traceparent: str,
    ) -> None:
        with self._tracer.span("limits of work", parent=traceparent) as span:
            reservation = await self._reserve(rules, work, principal, deadline)
            if reservation.refusal is not None:
                span.fail(reservation.refusal.code)
        if reservation.refusal is not None:
            refused = ItemOutcome(source=Source.FAILED, failure=reservation.refusal)
            settle([(item.index, refused) for item in work.items])
            return
        taken: list[ItemOutcome] = []

        def count(outcomes: Outcomes) -> None:
            taken.extend([outcome for _, outcome in outcomes])
            settle(outcomes)

        try:
            await finish(
                work,
                count,
                lambda settle: self._runner.start(
                    work, deadline=deadline, settle=settle, traceparent=traceparent
                ),
            )
        finally:
            reservation.settle(
                rows=sum(outcome.rows for outcome in taken),
                tokens=sum(outcome.tokens for outcome in taken),
            )

    async def _reserve(
        self, rules: WorkLimits, work: Work, principal: Principal, deadline: float
    ) -> Reservation:
        info = work.model.info
        items = [item.body for item in work.items]
        most = estimate(work.task, work.parameters, items, longest_row=info.max_tokens)
        try:
            async with asyncio.timeout_at(deadline):
                return await reserve(self._limiter, rules, principal, model=info.name, most=most)
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
