"""Simulates a day under one policy on virtual time, and returns its cost and latencies."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random

from loadtests.simulate.gateway import Ended, SimulatedGateway, length_of
from loadtests.simulate.policies import Oracle, PickingFleet, in_turn, of_two
from loadtests.simulate.results import Bucket, DayResult, figures, phases
from loadtests.simulate.scenario import (
    COOL_DOWN,
    DAY,
    LOST_REGION,
    SEGMENTS,
    SHIFTS,
    WARM_UP,
    Scenario,
    Segment,
    draw_length,
    is_lost,
)
from loadtests.simulate.virtual_time import run_virtual
from loadtests.simulate.world import BUSY_SHARE, INTERVAL, LEAST, START_UP, World
from sluicegate.gateway.routing.endpoint_state import EndpointState
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint

POLICIES = ("production", "oracle", "round robin", "two choices")
_NEAR, _FAR = 1e-3, 80e-3
"""Round trips in seconds, within a region and between two regions."""
_DEADLINE = 10.0
_DNS_INTERVAL = 5.0
_ORACLE_BUSY = 0.85
"""The share of the time for which the oracle keeps backends busy."""
_TICK = 0.5
# Seconds of a step between two segments, in which no requests are sent.
_COARSE = 60.0
# Seconds of a bucket in a segment that is simulated in full.
_BUCKET = 15.0


def play(scenario: Scenario, policy: str) -> DayResult:
    """Simulate the day."""

    async def run() -> DayResult:  # created on the event loop of virtual time
        return await _Simulation(scenario, policy).run()

    return run_virtual(run())


class _Simulation:
    """The world, its gateways, and the time of day."""

    def __init__(self, scenario: Scenario, policy: str) -> None:
        self._scenario = scenario
        self._policy = policy
        self._clock = asyncio.get_running_loop().time
        self._random = Random(1)
        self._item_seconds = scenario.item_seconds()
        self._oracle = Oracle()
        self._buckets: list[Bucket] = []
        self._bucket: Bucket | None = None
        self._world = World(
            tuple(SHIFTS), cost=scenario.cost(), random=self._random, most=scenario.backends
        )
        self._gateways = [self._gateway(region) for region in SHIFTS]

    def _gateway(self, region: str) -> SimulatedGateway:
        trips = {each: _NEAR if each == region else _FAR for each in SHIFTS}
        random = Random(region)
        fleet = self._fleet(trips, random)
        return SimulatedGateway(
            region, world=self._world, fleet=fleet, round_trips=trips, random=random
        )

    def _fleet(self, trips: Mapping[str, float], random: Random) -> Fleet:
        cost = self._scenario.cost()

        def foresee(_: Sequence[EndpointState], affinities: Sequence[bytes]) -> Endpoint:
            work = sum(cost.base + cost.alone(length_of(each)) for each in affinities)
            return self._oracle.take(work, self._clock(), trips)

        picks = {"round robin": in_turn(random), "two choices": of_two(random), "oracle": foresee}
        if (pick := picks.get(self._policy)) is None:
            return Fleet(clock=self._clock, random=random)
        return PickingFleet(clock=self._clock, random=random, pick=pick)

    async def run(self) -> DayResult:
        """Simulate every segment, and let the time between segments pass."""
        for region, busy in self._loads(0.0).items():
            self._world.resize(region, max(LEAST, math.ceil(busy / BUSY_SHARE)), at_once=True)
        async with AsyncExitStack() as stack:
            self._follow()
            for gateway in self._gateways:
                await stack.enter_async_context(gateway.prober)
                await stack.enter_async_context(gateway.dispatcher)
                await gateway.prober.wait_for_first_probes()
            for segment in SEGMENTS:
                self._pass_until(segment.start - WARM_UP)
                await self._play(segment)
            self._pass_until(DAY)
            await asyncio.sleep(_DEADLINE)  # requests in flight end
        return DayResult(
            policy=self._policy,
            phases=phases(self._buckets),
            points=[figures(bucket.phase, [bucket]) for bucket in self._buckets],
            pod_hours=self._world.pod_seconds / 3600.0,
            most_pods=self._world.most_pods,
        )

    def _loads(self, now: float) -> dict[str, float]:
        """Return how many backends the callers of each region keep busy.

        The callers of a lost region use the other regions.
        """
        own = {region: self._scenario.busy(region, now) for region in SHIFTS}
        if self._world.pools[LOST_REGION].is_lost:
            moved = own.pop(LOST_REGION) / len(own)
            return {region: busy + moved for region, busy in own.items()} | {LOST_REGION: 0.0}
        return own

    def _pass_until(self, until: float) -> None:
        """Advance the time of day without requests; scale pools by the load of that time."""
        world = self._world
        while world.day < until:
            step = min(_COARSE, until - world.day)
            world.day += step
            world.pass_time(step)
            self._lose()
            self._scale(self._loads(world.day))
        self._follow()

    def _scale(self, loads: Mapping[str, float] | None) -> None:
        if self._policy != "oracle":
            self._world.scale(loads)
            return
        ahead = [self._loads(self._world.day + later) for later in (0.0, 15.0, START_UP + 15.0)]
        most = self._scenario.backends // len(SHIFTS)
        for region, pool in self._world.pools.items():
            if not pool.is_lost:
                wanted = math.ceil(max(each[region] for each in ahead) / _ORACLE_BUSY)
                self._world.resize(region, max(LEAST, min(most, wanted)), at_once=True)

    def _lose(self) -> None:
        lost = is_lost(self._world.day)
        if self._world.pools[LOST_REGION].is_lost != lost:
            self._world.lose(LOST_REGION, lost=lost)
            if self._policy == "oracle":
                self._follow()

    def _follow(self) -> None:
        for gateway in self._gateways:
            gateway.follow()
        known = [each for each in self._world.endpoints() if not self._world.is_silent(each)]
        self._oracle.follow(known, self._clock())

    async def _play(self, segment: Segment) -> None:
        """Simulate a segment with its warm-up and cool-down, second by second."""
        began, world = self._clock(), self._world
        until = began + WARM_UP + segment.lasts + COOL_DOWN
        for gateway in self._gateways:
            self._send_later(gateway, until)
        dns = scale = began
        while (now := self._clock()) < until:
            world.day = segment.start - WARM_UP + now - began
            self._lose()
            if now - scale >= INTERVAL:
                scale = now
                is_full = segment.weight == 1.0 and world.day >= segment.start
                # With a grain of 40, a single item is longer than the queue at which a pool grows.
                # So the backends' reports are used only during an overload.
                self._scale(None if is_full else self._loads(world.day))
            if now - dns >= _DNS_INTERVAL:
                dns = now
                self._follow()
            self._open_bucket(segment)
            step = min(_TICK, until - now)
            world.pass_time(step)
            await asyncio.sleep(step)
        self._bucket = None

    def _open_bucket(self, segment: Segment) -> None:
        bucket, day = self._bucket, self._world.day
        # Sums of floats are inexact.
        if not segment.start - 1e-6 <= day < segment.start + segment.lasts - 1e-6:
            self._bucket = None
        elif bucket is None or (segment.weight == 1.0 and day >= bucket.start + _BUCKET):
            pods = [len(p.pods) for p in self._world.pools.values() if not p.is_lost]
            self._bucket = Bucket(phase=segment.name, start=day, weight=segment.weight, pods=pods)
            self._buckets.append(self._bucket)

    def _send_later(self, gateway: SimulatedGateway, until: float) -> None:
        """Send requests of a gateway's callers at random times."""
        rate = self._scenario.busy(gateway.region, self._world.day) / self._item_seconds

        def send() -> None:
            if self._clock() < until:
                body = gateway.body(draw_length(self._random))
                gateway.start(body, self._ended(gateway.region), _DEADLINE)
                self._send_later(gateway, until)

        asyncio.get_running_loop().call_later(self._random.expovariate(rate), send)

    def _ended(self, own: str) -> Ended:
        """Return the callback that counts a request in the bucket in which it was sent."""
        bucket = self._bucket

        def ended(seconds: float, code: str, region: bytes) -> None:
            if bucket is None:
                return
            if code:
                bucket.failed += 1
            else:
                bucket.latencies.append(seconds)
                bucket.spilled += region.decode() != own

        return ended
