"""Simulates a day under one policy on virtual time, and returns its cost and latencies."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from typing import Literal

from gateway.routing.endpoint_state import EndpointState
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from loadtests.simulate.gateway import Ended, SimulatedGateway, length_of
from loadtests.simulate.policies import Oracle, PickingFleet, in_turn, of_two
from loadtests.simulate.results import Bucket, DayResult, figures, phases
from loadtests.simulate.scenario import DAY, SHIFTS, Scenario, Segment, draw_length
from loadtests.simulate.virtual_time import run_virtual
from loadtests.simulate.world import World

Policy = Literal["production", "oracle", "round robin", "two choices"]
POLICIES: tuple[Policy, ...] = ("production", "oracle", "round robin", "two choices")
_NEAR, _FAR = 1e-3, 80e-3
"""Round trips in seconds, within a region and between two regions."""
_TICK = 0.5
# Seconds of a step between two segments, in which no requests are sent.
_COARSE = 60.0
# Seconds of a bucket in a segment that is simulated in full.
_BUCKET = 15.0


def play(scenario: Scenario, policy: Policy) -> DayResult:
    """Simulate the day."""

    async def run() -> DayResult:  # created on the event loop of virtual time
        return await _Simulation(scenario, policy).run()

    return run_virtual(run())


class _Simulation:
    """The world, its gateways, and the time of day."""

    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self.scenario = scenario
        self.policy = policy
        self._buckets: list[Bucket] = []
        self._loop = asyncio.get_running_loop()
        self._random = Random(scenario.seed)
        self._seconds = scenario.item_seconds()
        self._oracle = Oracle()
        self.world = World(
            tuple(SHIFTS),
            cost=scenario.cost(),
            random=self._random,
            rule=scenario.scaling,
            most=scenario.backends,
        )
        self._bucket: Bucket | None = None
        self.gateways = [self._gateway(region) for region in SHIFTS]

    def _gateway(self, region: str) -> SimulatedGateway:
        trips = {each: _NEAR if each == region else _FAR for each in SHIFTS}
        random = Random(f"{self.scenario.seed} {region} 0")
        return SimulatedGateway(
            region,
            world=self.world,
            fleet=self._fleet(trips, random),
            round_trips=trips,
            random=random,
        )

    def _fleet(self, trips: Mapping[str, float], random: Random) -> Fleet:
        clock, cost = self._loop.time, self.scenario.cost()

        def foresee(_: Sequence[EndpointState], affinities: Sequence[bytes]) -> Endpoint:
            work = sum(cost.base + cost.alone(length_of(each)) for each in affinities)
            return self._oracle.take(work, clock(), trips)

        picks = {"round robin": in_turn(random), "two choices": of_two(random), "oracle": foresee}
        if (pick := picks.get(self.policy)) is None:
            return Fleet(clock=clock, random=random)
        return PickingFleet(clock=clock, random=random, pick=pick)

    async def run(self) -> DayResult:
        """Simulate every segment, and let the time between segments pass."""
        began = time.process_time()
        for region, busy in self._loads(0.0).items():
            count = math.ceil(busy / self.scenario.scaling.busy_share)
            self.world.resize(region, max(self.scenario.scaling.least, count), at_once=True)
        async with AsyncExitStack() as stack:
            self._follow()
            for gateway in self.gateways:
                await stack.enter_async_context(gateway.prober)
                await stack.enter_async_context(gateway.dispatcher)
                await gateway.prober.wait_for_first_probes()
            for segment in self.scenario.day.segments():
                self._pass_until(segment.start - self.scenario.day.warm_up)
                await self._play(segment)
            self._pass_until(DAY)
            await asyncio.sleep(self.scenario.deadline)  # requests in flight end
        return DayResult(
            policy=self.policy,
            phases=(parts := phases(self._buckets)),
            points=[figures(bucket.phase, [bucket]) for bucket in self._buckets],
            pod_hours=self.world.pod_seconds / 3600.0,
            most_pods=self.world.most_pods,
            simulated=parts[-1].played,
            processor_seconds=time.process_time() - began,
        )

    def _loads(self, now: float) -> dict[str, float]:
        """Return how many backends the callers of each region keep busy.

        The callers of a lost region use the other regions.
        """
        day = self.scenario.day
        own = {
            region: self.scenario.busy / len(SHIFTS) * day.load(now, shift)
            for region, shift in SHIFTS.items()
        }
        lost = [region for region in own if self.world.pools[region].is_lost]
        left = [region for region in own if region not in lost]
        moved = sum(own[region] for region in lost) / max(1, len(left))
        return {region: own[region] + moved if region in left else 0.0 for region in own}

    def _rate(self, region: str, now: float) -> float:
        busy = self.scenario.busy / len(SHIFTS) * self.scenario.day.load(now, SHIFTS[region])
        return busy / self._seconds

    def _pass_until(self, until: float) -> None:
        """Advance the time of day without requests; scale pools by the load of that time."""
        world = self.world
        while world.day < until:
            step = min(_COARSE, until - world.day)
            world.day += step
            world.pass_time(step)
            self._lose()
            self._scale(self._loads(world.day))
        self._follow()

    def _scale(self, loads: Mapping[str, float] | None = None) -> None:
        if self.policy != "oracle":
            self.world.scale(loads)
            return
        rule, share = self.scenario.scaling, self.scenario.oracle_busy
        ahead = [self._loads(self.world.day + later) for later in (0.0, 15.0, rule.start_up + 15.0)]
        for region, pool in self.world.pools.items():
            if not pool.is_lost:
                wanted = math.ceil(max(each[region] for each in ahead) / share)
                most = self.scenario.backends // len(SHIFTS)
                self.world.resize(region, max(rule.least, min(most, wanted)), at_once=True)

    def _lose(self) -> None:
        outage = self.scenario.day.outage
        lost = self.scenario.day.is_lost(self.world.day)
        if self.world.pools[outage.region].is_lost != lost:
            self.world.lose(outage.region, lost=lost)
            if self.policy == "oracle":
                self._follow()

    def _follow(self) -> None:
        for gateway in self.gateways:
            gateway.follow(self.scenario.routing)
        pools = self.world.pools
        known = [each for each in self.world.endpoints() if not pools[each.region].is_lost]
        self._oracle.follow(known, self._loop.time())

    async def _play(self, segment: Segment) -> None:
        """Simulate a segment with its warm-up and cool-down, second by second."""
        day, began, world = self.scenario.day, self._loop.time(), self.world
        until = began + day.warm_up + segment.lasts + day.cool_down
        for gateway in self.gateways:
            self._arrive(gateway, until, first=True)
        dns = scale = began
        while (now := self._loop.time()) < until:
            world.day = segment.start - day.warm_up + now - began
            self._lose()
            if now - scale >= self.scenario.scaling.interval:
                scale = now
                is_full = segment.weight == 1.0 and world.day >= segment.start
                # With a grain of 40, a single item is longer than the queue at which a pool grows.
                # So the backends' reports are used only during an overload.
                self._scale(None if is_full else self._loads(world.day))
            if now - dns >= self.scenario.routing.dns_interval:
                dns = now
                self._follow()
            self._open_bucket(segment)
            step = min(_TICK, until - now)
            world.pass_time(step)
            await asyncio.sleep(step)
        self._bucket = None

    def _open_bucket(self, segment: Segment) -> None:
        bucket, day = self._bucket, self.world.day
        # Sums of floats are inexact.
        if not segment.start - 1e-6 <= day < segment.start + segment.lasts - 1e-6:
            self._bucket = None
        elif bucket is None or (segment.weight == 1.0 and day >= bucket.start + _BUCKET):
            pods = [len(p.pods) for p in self.world.pools.values() if not p.is_lost]
            self._bucket = Bucket(phase=segment.name, start=day, weight=segment.weight, pods=pods)
            self._buckets.append(self._bucket)

    def _arrive(self, gateway: SimulatedGateway, until: float, *, first: bool = False) -> None:
        now = self._loop.time()
        if now >= until:
            return
        if not first:
            gateway.send(
                self._ended(gateway.region),
                tokens=draw_length(self._random),
                limit=self.scenario.deadline,
            )
        pause = self._random.expovariate(self._rate(gateway.region, self.world.day))
        self._loop.call_later(pause, self._arrive, gateway, until)

    def _ended(self, own: str) -> Ended:
        """Return the callback that counts a request in the bucket in which it was sent."""
        bucket = self._bucket

        def ended(seconds: float, code: str, region: str) -> None:
            if bucket is None:
                return
            if code:
                bucket.failed += 1
            else:
                bucket.latencies.append(seconds)
                bucket.spilled += region != own

        return ended
