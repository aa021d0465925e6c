"""Breaks parts of a world on a seeded schedule, and records what was broken when."""

import asyncio
import math
import random
import signal
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from testing.simulation.machines import Machine
from testing.simulation.world.callers import OK, read_answer
from testing.simulation.world.invariants import LEDGER, STOP, Disturbance
from testing.simulation.world.model import DAMAGES, FAILURES
from testing.simulation.world.scenario import LENGTH, Step
from testing.simulation.world.world import REGIONS, Part, World

GATEWAYS: Final = tuple(f"{region}-gateway" for region in REGIONS)
BACKENDS: Final = tuple(f"{region}-backend" for region in REGIONS)
REDIS: Final = tuple(f"{region}-redis" for region in REGIONS)
_EACH: Final = ("worker-0", "shipper", "billing", "request-log")
PROCESSES: Final = (
    *(f"{machine}/{name}" for machine in GATEWAYS for name in _EACH),
    *("eu-gateway/worker-1", "eu-gateway/admin", "us-gateway/admin"),
    *("eu-backend/backend-0", "eu-backend/backend-1", "us-backend/backend-0"),
)
WORKERS: Final = ("eu-gateway/worker-0", "eu-gateway/worker-1", "us-gateway/worker-0")
_LINKS: Final = (
    *((gateway, backend) for gateway in GATEWAYS for backend in BACKENDS),
    *((f"{region}-gateway", f"{region}-redis") for region in REGIONS),
    *(("callers", gateway) for gateway in GATEWAYS),
    ("eu-gateway", "us-redis"),
)
_TARGETS: Final[dict[str, tuple[str, ...]]] = {
    "kill": PROCESSES,
    "kill-call": PROCESSES,
    "kill-request": WORKERS,
    "pause": PROCESSES,
    "crash": (*GATEWAYS, *BACKENDS),
    "jump": (*GATEWAYS, *BACKENDS, *REDIS),
    "drift": (*GATEWAYS, *BACKENDS, *REDIS),
    "full": GATEWAYS,
    "broken": GATEWAYS,
    "sync": GATEWAYS,
    "lose": REDIS,
    "empty": REDIS,
    "busy": REDIS,
    **dict.fromkeys(LEDGER, GATEWAYS),
    "model-slow": BACKENDS,
    "model-fails": BACKENDS,
    "model-nan": BACKENDS,
    "model-infinite": BACKENDS,
    "model-shape": BACKENDS,
    STOP: PROCESSES,
}
LINK_KINDS: Final = ("cut", "cut-one-way", "slow", "reset")
KINDS: Final = (*_TARGETS, *LINK_KINDS)
_NOTICED: Final = 1.0
"""Seconds in which a load balancer notices that a worker is not ready."""
_POLL: Final = 0.5
_CHOICES: Final = ("by", "for", "after")
"""Words of a plan that come before a number that the seed would choose otherwise."""
_COUNTED: Final = ("kill-call", "kill-request")
"""Faults whose amount is a number of calls: since the begin of the fault, or since the next request
of a caller."""
_OUTAGES: Final = (0.3, 3.0, 9.0, 15.0)
"""Seconds without the ledger. Some are longer than the lease of a region's shares."""
_CALLS: Final = (1.0, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)


def make_faults(seed: int, kinds: tuple[str, ...] = KINDS) -> tuple[Step, ...]:
    """Return the faults of a seed, one to six of them."""
    chooser = random.Random(f"faults {seed}")
    faults = []
    for _ in range(chooser.choice((1, 1, 2, 2, 3, 4, 6))):
        kind = chooser.choice(kinds)
        target, other = chooser.choice(_TARGETS.get(kind, ("",))), ""
        if kind in LINK_KINDS:
            target, other = chooser.choice(_LINKS)
            if chooser.random() < 0.5:
                target, other = other, target
        elif kind in LEDGER:
            other = chooser.choice(("", *GATEWAYS))
        amount = chooser.choice((0.05, 0.5, 2.0))
        if kind == "jump":
            amount = chooser.choice((-30.0, -2.0, -0.2, 0.2, 2.0, 30.0))
        elif kind == "drift":
            amount = chooser.choice((-0.05, 0.05))
        elif kind in _COUNTED:
            amount = chooser.choice(_CALLS)
        faults.append(
            Step(
                at=chooser.uniform(0.0, LENGTH),
                kind=kind,
                target=target,
                other=other,
                lasts=chooser.choice(_OUTAGES if kind in LEDGER else (0.3, 1.0, 3.0, 6.0)),
                amount=amount,
            )
        )
    return tuple(sorted(faults, key=lambda each: each.at))


def make_directed(seed: int, plan: Sequence[str]) -> tuple[Step, ...]:
    """Return the faults and operations of a plan, each soon after the one before, in one region.

    A step of a plan is a kind, then places, such as `slow gateway redis`, or the amount of an
    operation. A place without a region is in the region of the seed. What else the seed would
    choose can follow: `by` an amount, `for` some seconds, `after` some seconds since the step
    before.
    """
    chooser = random.Random(f"directed {seed}")
    region, at = chooser.choice(REGIONS), chooser.uniform(1.0, LENGTH / 2)
    steps: list[Step] = []
    for each in plan:
        kind, *rest = each.split()
        chosen = {}
        while len(rest) > 1 and rest[-2] in _CHOICES:
            *rest, name, value = rest
            chosen[name] = float(value)
        is_fault = kind in KINDS
        places = [place if _has_region(place) else f"{region}-{place}" for place in rest]
        if not is_fault:
            places = [f"{region}-0", "tiny"]
        amount = chooser.choice(_CALLS if kind in _COUNTED else (0.05, 0.5, 2.0))
        lasts = chooser.choice((0.3, 1.0, 3.0, 6.0))
        if steps and "after" in chosen:
            at = steps[-1].at + chosen["after"]
        steps.append(
            Step(
                at=at,
                kind=kind,
                target=places[0],
                other=places[1] if len(places) > 1 else "",
                lasts=chosen.get("for", lasts),
                amount=chosen.get("by", amount) if is_fault or not rest else float(rest[0]),
            )
        )
        at += chooser.choice((chooser.uniform(0.05, 0.4), chooser.uniform(0.4, 2.5)))
    return tuple(steps)


def _has_region(place: str) -> bool:
    return place.split("-", maxsplit=1)[0] in (*REGIONS, "callers")


class Faults:
    """Injects faults. `found` is what was broken; `note` writes a line of the story."""

    def __init__(self, world: World, note: Callable[[str], None]) -> None:
        self.found: list[Disturbance] = []
        self.failed_stops: list[str] = []
        """Stops that did not end well, in words."""
        self._world = world
        self._network = world.simulation.network
        self._note = note

    async def inject(self, step: Step) -> None:
        """Break something, wait, mend it, and record both times."""
        begun = self._world.simulation.now
        what = f"{step.kind} {step.target} {step.other}".strip()
        self._note(f"fault: {what} ({step.lasts:g} s, {step.amount:g})")
        machines = {step.target.split("/")[0], step.other} - {""}
        place = len(self.found)
        self.found.append(
            Disturbance(
                kind=step.kind,
                target=step.target,
                machines=frozenset(machines),
                begun=begun,
                ended=math.inf,
            )
        )
        act = getattr(self, f"_{step.kind.split('-')[0]}")
        await act(step)
        ended = self._world.simulation.now
        self.found[place] = msgspec.structs.replace(self.found[place], ended=ended)
        self._note(f"fault ends: {what}")

    async def _kill(self, step: Step) -> None:
        process = self._world.parts[step.target].process
        if process is None:
            return
        if step.kind == "kill":
            process.kill()
            return
        if step.kind == "kill-call":
            process.calls_left = int(step.amount)
        else:
            process.counts_from = self._world.address("callers"), int(step.amount)
        await asyncio.sleep(step.lasts)
        process.calls_left = process.counts_from = None

    async def _stop(self, step: Step) -> None:
        """Stop a process as an operator does, and wait until another one serves in its place."""
        part, worker = self._world.parts[step.target], self._world.worker_of(step.target)
        former = part.process
        if former is None or not former.signal(signal.SIGTERM):
            return  # it is starting
        await asyncio.sleep(_NOTICED)
        if worker:
            self._world.draining.append(worker)
        while True:
            await asyncio.sleep(_POLL)
            if not former.is_alive and await self._serves(part, worker):
                break
        if former.failure is not None:
            self.failed_stops.append(f"{former.label} was stopped, and ended by {former.failure!r}")
        if worker:
            self._world.draining.remove(worker)

    async def _serves(self, part: Part, worker: str) -> bool:
        """Return whether a process is running, and, as a load balancer asks, ready."""
        if not part.is_running:
            return False
        if not worker:
            return True
        head = b"GET /health/ready HTTP/1.1\r\nhost: balancer\r\nconnection: close\r\n\r\n"
        try:
            async with asyncio.timeout(_POLL):
                reader, writer = await asyncio.open_connection(*self._world.workers[worker])
                writer.write(head)
                status, _, _ = await read_answer(reader)
                writer.close()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return False
        return status == OK

    async def _pause(self, step: Step) -> None:
        await self._pause_for(self._world.parts[step.target], step.lasts)

    async def _crash(self, step: Step) -> None:
        self._machine(step).crash()
        await asyncio.sleep(step.lasts)
        self._machine(step).boot()

    async def _jump(self, step: Step) -> None:
        self._machine(step).clock.jump(step.amount)

    async def _drift(self, step: Step) -> None:
        clock = self._machine(step).clock
        clock.drift = step.amount
        await asyncio.sleep(step.lasts)
        clock.drift = 0.0

    async def _full(self, step: Step) -> None:
        disk = self._machine(step).disk
        disk.is_full = True
        await asyncio.sleep(step.lasts)
        disk.is_full = False

    async def _broken(self, step: Step) -> None:
        disk = self._machine(step).disk
        disk.is_broken = True
        await asyncio.sleep(step.lasts)
        disk.is_broken = False

    async def _sync(self, step: Step) -> None:
        disk = self._machine(step).disk
        disk.sync_seconds = step.amount
        await asyncio.sleep(step.lasts)
        disk.sync_seconds = 0.0

    async def _lose(self, step: Step) -> None:
        """Restart the state Redis without what it was told in its last second."""
        await self._restart_redis(step, keeps=True)

    async def _empty(self, step: Step) -> None:
        await self._restart_redis(step, keeps=False)

    async def _restart_redis(self, step: Step, *, keeps: bool) -> None:
        part = self._world.parts[f"{step.target}/state"]
        part.start_at = self._world.simulation.now + step.lasts
        if part.process is not None:
            part.process.kill()
        data = self._world.redis[f"{step.target}/state"]
        if keeps:
            data.restore(self._world.saved[f"{step.target}/state"])
        else:
            data.clear()
        await asyncio.sleep(step.lasts)

    async def _busy(self, step: Step) -> None:
        await self._pause_for(self._world.parts[f"{step.target}/state"], step.lasts)

    async def _ledger(self, step: Step) -> None:
        """Let one gateway or two lose the ledger, or only the answers to their commits.

        The fault ends when the last statement has failed.
        """
        machines = [self._world.machines[each] for each in (step.target, step.other) if each]
        for machine in machines:
            if step.kind == "ledger":
                machine.lose_databases(timeout=step.amount)
            else:
                machine.commit_timeout = step.amount
        await asyncio.sleep(step.lasts)
        for machine in machines:
            if step.kind == "ledger":
                machine.database_timeout = None
            else:
                machine.commit_timeout = None
        await asyncio.sleep(step.amount)

    async def _pause_for(self, part: Part, seconds: float) -> None:
        process = part.process
        if process is not None and process.is_alive:
            process.pause()
            await asyncio.sleep(seconds)
            if process.is_alive:
                process.resume()

    async def _model(self, step: Step) -> None:
        pace, kind = self._world.paces[step.target], step.kind.split("-")[1]
        if kind == "slow":
            pace.slowness = 100.0
        elif kind in DAMAGES:
            pace.damage = DAMAGES[kind]
        else:
            pace.failure = FAILURES[kind]
        await asyncio.sleep(step.lasts)
        pace.heal()

    async def _cut(self, step: Step) -> None:
        one, other = self._addresses(step)
        pairs = [(one, other)] if step.kind == "cut-one-way" else [(one, other), (other, one)]
        for pair in pairs:
            self._network.cut(*pair)
        await asyncio.sleep(step.lasts)
        for pair in pairs:
            self._network.heal(*pair)

    async def _slow(self, step: Step) -> None:
        one, other = self._addresses(step)
        self._network.slow(one, other, step.amount)
        await asyncio.sleep(step.lasts)
        self._network.slow(one, other, 0.0)

    async def _reset(self, step: Step) -> None:
        self._network.reset(*self._addresses(step))

    def _machine(self, step: Step) -> Machine:
        return self._world.machines[step.target]

    def _addresses(self, step: Step) -> tuple[str, str]:
        return self._world.address(step.target), self._world.address(step.other)
