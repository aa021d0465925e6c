"""Runs a scenario: starts the world, lets everybody act, waits until all is well, and judges."""

import asyncio
import logging
import math
import random
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
from typing_extensions import override

from testing.simulation import Simulation
from testing.simulation.machines import current_process
from testing.simulation.world import invariants
from testing.simulation.world.bounds import Bounds, watch_objects
from testing.simulation.world.callers import Attempt, Caller
from testing.simulation.world.faults import Faults
from testing.simulation.world.model import Oracle
from testing.simulation.world.monitor import Monitor
from testing.simulation.world.operators import Change, Operators, ask_admin
from testing.simulation.world.scenario import CAPACITY, LIMITED, TENANTS, Request, Scenario, Step
from testing.simulation.world.world import ADMIN_KEY, DOCUMENT, REGIONS, World

_START: Final = 30.0
_FIRST_LOAD: Final = 13.0
"""A new region has no share of a limit at first. Midnight comes soon, also in a short load."""
_SETTLED: Final = 10.0
"""Seconds after the last fault within which everything must work again."""
_BILLED: Final = 15.0
_CLAIMED: Final = 25.0
"""Seconds within which all is billed, without and with entries of a consumer that is gone."""
_KNOWN_AFTER: Final = 1.0
"""Seconds after its acknowledgement in which a changed limit applies (docs/configuration.md). A
worker that is paused or cut off from the ledger knows it so long after the fault."""
_POLL: Final = 0.5
_LOOK: Final = 0.1
"""Seconds between two looks whether somebody has written to the ledger."""
LONGEST: Final = 240.0
"""Virtual seconds after which a run has failed."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs begin with; see `prepare`."""

    ledger: Path
    models: Path
    secrets: Mapping[str, str]


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a run. `story` has lines that begin with the virtual time."""

    seed: int
    findings: list[str]
    story: list[str] = []
    digest: str = ""
    statuses: dict[str, int] = {}
    virtual_seconds: float = 0.0
    seconds: float = 0.0
    """Seconds of processor time."""


class Run:
    """One run of a scenario. All of it happens on the loop of `simulation`.

    `choose` returns the scenario once the world is ready for the load. It may fork.
    """

    def __init__(
        self,
        simulation: Simulation,
        choose: Callable[[], Scenario],
        prepared: Prepared,
        folder: Path,
    ) -> None:
        self.story: list[str] = []
        self.scenario: Scenario | None = None
        self._choose = choose
        self._secrets = dict(prepared.secrets)
        self._world = World(
            simulation,
            folder=folder,
            ledger=prepared.ledger,
            models=prepared.models,
        )
        self._simulation = simulation
        self._oracle = Oracle()
        for root in self._world.repositories:
            self._oracle.learn(root)
        self._chooser = random.Random(0)
        self._operators = Operators(self._world, self._secrets, self._oracle)
        self._faults = Faults(self._world, self.note)
        watch_objects()
        states = {name: data for name, data in self._world.redis.items() if "/state" in name}
        self._bounds = Bounds(states, self._faults.found)
        self._monitor = Monitor(
            oracle=self._oracle,
            ledger=self._world.ledger,
            faults=self._faults.found,
            capacity_at=self._capacity_at,
            bounds=self._bounds.exceeded,
            clock=self._clock,
            note=self.note,
        )
        self.findings = self._monitor.findings
        self._caller = self._new_caller(self._chooser)
        self._probe = self._new_caller(random.Random(0))

    def _clock(self) -> float:
        return self._simulation.now

    def _new_caller(self, chooser: random.Random) -> Caller:
        monitor, workers = self._monitor, self._world.workers
        return Caller(
            workers,
            chooser,
            self._clock,
            draining=self._world.draining,
            on_sent=monitor.sent,
            on_end=monitor.ended,
        )

    async def main(self) -> None:
        """Run, and leave what was found in `findings`."""
        logging.root.handlers = [_StoryHandler(self.note)]
        self._world.start()
        supervising = asyncio.create_task(self._world.supervise())
        watching = asyncio.create_task(self._monitor.watch())
        missing = await self._until_well(_START)
        await asyncio.sleep(max(0.0, _FIRST_LOAD - self._clock()))
        scenario = self.scenario = self._choose()
        self._simulation.reseed(scenario.seed)
        self._chooser.seed(f"callers {scenario.seed}")
        if missing:
            self._monitor.tell(f"not ready after {_START:g} s: {', '.join(missing)}")
        else:
            await self._act(scenario)
            await self._judge()
        for task in (supervising, watching):
            if task.done():
                await task
            task.cancel()

    @property
    def attempts(self) -> list[Attempt]:
        """All requests of customers that were sent so far."""
        return self._caller.attempts

    def note(self, line: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self._clock():9.3f}  {line}")

    async def _act(self, scenario: Scenario) -> None:
        self.note("the load begins")
        self._begun = begun = self._monitor.judges_times_from = self._clock()
        asking = self._world.callers.start(
            "callers",
            lambda: self._caller.ask_all(scenario.requests, self._secrets.__getitem__, begun),
        )

        async def at(step: Step, act: Callable[[Step], Any]) -> None:
            await asyncio.sleep(max(0.0, begun + step.at - self._clock()))
            await act(step)

        async with asyncio.TaskGroup() as tasks:
            operations = [tasks.create_task(at(s, self._operate)) for s in scenario.operations]
            faults = [tasks.create_task(at(step, self._faults.inject)) for step in scenario.faults]
            if faults:
                await asyncio.wait(faults)
            ended = self._clock()
            self.note("all faults have ended")
            if missing := await self._until_well(_SETTLED):
                late = f"{self._clock() - ended:.1f} s after the last fault"
                self._monitor.tell(f"not well {late}: {', '.join(missing)}")
            else:
                self.note(f"all is well {self._clock() - ended:.1f} s after the last fault")
            await asking.wait()
            if operations:  # a change may need as long as everything else to work again
                left = max(0.0, ended + _SETTLED - self._clock())
                await asyncio.wait(operations, timeout=left)
            self._operators.is_ending = True
            if operations:
                await asyncio.wait(operations)
            # Only now is it known that every worker knows the new keys.
            if self._operators.former and (missing := await self._until_well(_SETTLED)):
                self._monitor.tell(f"not well after the last operation: {', '.join(missing)}")

    async def _operate(self, step: Step) -> None:
        what = f"{step.kind} {step.target} {step.other}"
        self.note(f"an operator begins: {what}")
        await self._operators.do(step)
        self.note(f"an operator's change is acknowledged: {what}")

    async def _until_well(self, within: float) -> list[str]:
        """Wait until every worker answers every tenant; return what is missing after the time."""
        deadline = self._clock() + within
        while missing := await self._unwell():
            if self._clock() >= deadline:
                return missing
            await asyncio.sleep(_POLL)
        return []

    async def _unwell(self) -> list[str]:
        parts = self._world.parts
        missing = [name for name, part in parts.items() if not part.is_running]
        unknown = self._operators.unknown_keys()
        asking = [
            self._probe.attempt(_probe_of(tenant, worker), worker, self._secrets[tenant])
            for worker in self._world.workers
            for tenant in TENANTS
        ]
        for attempt in await asyncio.gather(*asking):
            tenant = attempt.request.tenant
            is_limited = attempt.status == 429 and tenant == LIMITED
            is_unknown = attempt.status == 401 and tenant in unknown
            if not (attempt.status == 200 or is_limited or is_unknown):
                missing.append(f"{attempt.worker} for {tenant}: {attempt.status} {attempt.code}")
        return missing

    async def _judge(self) -> None:
        attempts = self._caller.attempts + self._probe.attempts
        faults = self._faults.found
        secrets = {*self._secrets.values(), *self._operators.former, ADMIN_KEY}
        is_gone = any(fault.kind == "crash" for fault in faults)
        deadline = self._clock() + (_CLAIMED if is_gone else _BILLED)
        version, rows, unbilled = None, [], []
        with closing(sqlite3.connect(self._world.ledger)) as ledger:
            while True:
                if (changed := ledger.execute("PRAGMA data_version").fetchone()) != version:
                    version, rows = changed, invariants.read_ledger(ledger)
                    unbilled = list(invariants.billing(attempts, rows, faults))
                wrong = unbilled or [
                    *invariants.request_logs(self._world.request_logs(), attempts, faults, secrets),
                    *self._bounds.left(),  # a call that was cut off ends by its time limit
                ]
                if not wrong or self._clock() >= deadline:
                    break
                await asyncio.sleep(_LOOK)
            unread = list(invariants.dead_letters(ledger))
        later = [attempt for attempt in attempts if attempt.sent >= self._begun]
        prices = DOCUMENT["prices"]
        self._monitor.look()
        findings = [
            *wrong,
            *(each for each in self._world.failures if "-redis/" in each),
            *invariants.slow_stops(faults),
            *self._faults.failed_stops,
            *invariants.invoices(self._world.ledger, rows, prices),
            *unread,
            *invariants.unclear_errors(attempts),
            *invariants.errors_without_faults(later, faults, self._operators.former),
            *invariants.late_refusals(later, faults),
            *self._computed_again(later),
            *self._purged_hits(attempts),
            *await self._lost_changes(),
        ]
        for finding in findings:
            self._monitor.tell(finding)

    def _computed_again(self, attempts: list[Attempt]) -> Iterator[str]:
        kinds = {fault.kind for fault in self._faults.found} - {"model-slow", *invariants.LEDGER}
        if not kinds and {c.step.kind for c in self._operators.changes} <= {"limit", "rotate"}:
            yield from invariants.computed_again(attempts)

    def _purged_hits(self, attempts: list[Attempt]) -> Iterator[str]:
        for change in self._operators.changes:
            if change.step.kind == "purge" and change.acknowledged is not None:
                yield from invariants.purged_hits(
                    attempts,
                    change.value,
                    change.begun,
                    change.acknowledged,
                    self._faults.found,
                )

    def _capacity_at(self, time: float) -> int:
        """Return the largest limit that may apply at a time."""
        values = [CAPACITY]
        for change in self._operators.changes:
            if change.step.kind == "limit" and change.begun <= time:
                wanted = int(change.step.amount)
                is_known = self._known_from(change) <= time
                values = [wanted] if is_known else [*values, wanted]
        return max(values)

    def _known_from(self, change: Change) -> float:
        """Return from when on every worker knows an operator's change."""
        if change.acknowledged is None:
            return math.inf
        known = change.acknowledged + _KNOWN_AFTER
        for fault in self._faults.found:  # in the order of their begins
            is_near = fault.begun <= known and change.begun <= fault.ended
            if is_near and fault.kind in ("pause", *invariants.LEDGER):
                known = max(known, fault.ended + _KNOWN_AFTER)
        return known

    async def _lost_changes(self) -> list[str]:
        """Return acknowledged changes that are not in effect, and changes without an answer."""
        changes = self._operators.changes
        lost = list(self._operators.lost)
        lost += [f"no answer to {c.step.kind}" for c in changes if c.acknowledged is None]
        reloads = [change.value for change in changes if change.step.kind == "reload"]
        if len(reloads) == 1 and reloads[0]:  # several may have been published in any order
            wanted = reloads[0]["deadline"]["maximum"]
            for region in REGIONS:
                _, active = await ask_admin(self._world, region, "GET", "/admin/config")
                if active["document"]["deadline"]["maximum"] != wanted:
                    lost.append(f"{region} lost an acknowledged document")
        limits = [change.value for change in changes if change.step.kind == "limit"]
        if any(limits):
            _, tenant = await ask_admin(self._world, "eu", "GET", f"/admin/tenants/{LIMITED}")
            if tenant["limits"][0]["capacity"] not in limits:
                lost.append("an acknowledged limit was lost")
        return lost + [each async for each in self._valid_former_keys()]

    async def _valid_former_keys(self) -> AsyncIterator[str]:
        for secret in self._operators.former:
            for worker in self._world.workers:
                attempt = await self._probe.attempt(_probe_of("beta", worker), worker, secret)
                if attempt.status != 401:
                    yield f"{worker} answered {attempt.status} to a key that was replaced"

    def tell_requests(self) -> None:
        """Add the requests and the ends of processes to the story, in the order of time."""
        for attempt in self._caller.attempts:
            self.story.append(_line(attempt))
        self.story += [f"{'':9}  the process ended: {each}" for each in self._world.failures]
        self.story.sort(key=lambda line: float(line[:9].strip() or "inf"))


class _StoryHandler(logging.Handler):
    """Adds the log lines of all processes to the story."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    @override
    def emit(self, record: logging.LogRecord) -> None:
        process = current_process()
        where = process.label if process is not None else "-"
        more = {name: value for name, value in vars(record).items() if name not in _USUAL}
        why = f" {record.exc_info[1]!r}" if record.exc_info else ""
        self._note(f"{where} logs: {record.getMessage()}{why} {more or ''}".rstrip())


_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message"}


def _probe_of(tenant: str, worker: str) -> Request:
    body = {"model": "tiny", "input": [f"{tenant[0]} good film"]}
    return Request(
        at=0.0,
        tenant=tenant,
        worker=worker,
        path="/v1/embed",
        body=body,
        items=1,
        timeout=2.0,
        cache_control="no-cache",
    )


def _line(attempt: Attempt) -> str:
    request = attempt.request
    what = f"{request.tenant} {request.path} {request.items} items to {attempt.worker}"
    key = f", key {request.idempotency_key}" if request.idempotency_key else ""
    said = f"{attempt.status} {attempt.code} {attempt.id}".strip()
    return f"{attempt.sent:9.3f}  {what}{key}: {said} after {attempt.came - attempt.sent:.3f} s"
