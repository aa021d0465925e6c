"""The simulated day, in a form of seconds: a few backends, a few minutes of it."""

import asyncio
import itertools
from functools import partial
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace
from typing_extensions import override

from backends.protocol import Call, CallItem, ServingState, Task
from gateway.dispatch.prober import MOST_PROBES, Prober
from gateway.routing.fleet import Fleet
from gateway.types import Endpoint
from gateway.upstream.base import CallFailed, Cause
from loadtests.machine import Machine
from loadtests.simulate.command import SimulationFile, draw_days, tables
from loadtests.simulate.gateway import MODEL, SimulatedClient
from loadtests.simulate.results import Bucket, DayResult, Figures, figures
from loadtests.simulate.run import POLICIES, Policy, play
from loadtests.simulate.scenario import DAY, Day, Outage, Scenario, Spike
from loadtests.simulate.virtual_time import run_virtual
from loadtests.simulate.world import Scaler, ScalingRule, World
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

SHORT = Scenario(
    backends=30,
    busy=3.0,
    day=Day(
        slot=DAY / 3,
        sample=4.0,
        away=4.0,
        warm_up=2.0,
        cool_down=2.0,
        after=8.0,
        spike=Spike(ramp=2.0, lasts=2.0, tail=6.0),
        outage=Outage(lasts=1800.0),
    ),
)


def phase(result: DayResult, name: str) -> Figures:
    return next(each for each in result.phases if each.phase == name)


def test_sleeping_for_a_day_of_virtual_time_takes_none() -> None:
    async def sleep() -> float:
        await asyncio.sleep(DAY)
        return asyncio.get_running_loop().time()

    assert run_virtual(sleep()) == pytest.approx(DAY)


def test_a_task_that_waits_for_nothing_is_an_error_on_virtual_time() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing would ever happen"):
        run_virtual(wait())


def test_the_parts_of_a_day_stand_for_all_of_it() -> None:
    segments = Day().segments()

    covered = sum(one.lasts * one.weight for one in segments)

    assert covered == pytest.approx(DAY)
    assert all(
        one.start + one.lasts + Day().cool_down <= other.start - Day().warm_up
        for one, other in itertools.pairwise(segments)
    )


def test_the_load_has_the_mean_one_and_is_tenfold_in_the_spike() -> None:
    day = Day()
    quiet = replace(day, spike=Spike(times=1.0))
    mean = sum(quiet.load(minute * 60.0, 0.0) for minute in range(1440)) / 1440
    top = day.spike.at + day.spike.ramp + 1.0

    assert mean == pytest.approx(1.0, abs=0.01)
    assert day.load(top, 0.0) == pytest.approx(10.0 * quiet.load(top, 0.0))


@pytest.fixture(scope="module")
def production() -> DayResult:
    return play(SHORT, "production")


def test_calm_parts_of_a_day_have_no_errors_and_a_spike_has(production: DayResult) -> None:
    assert phase(production, "quiet").errors == 0.0
    assert phase(production, "region away").errors == 0.0
    assert phase(production, "spike").errors > 0.0


@pytest.mark.parametrize("policy", ["oracle", "round robin", "two choices"])
def test_every_policy_plays_the_day_and_an_oracle_is_cheapest(
    policy: Policy, production: DayResult
) -> None:
    other = play(SHORT, policy)

    assert phase(other, "quiet").errors == 0.0
    assert policy != "oracle" or other.pod_hours < production.pod_hours
    assert {one.phase for one in other.phases} == {one.phase for one in production.phases}


def test_what_surrounds_a_sample_outlasts_slow_start_and_a_request() -> None:
    scenario = Scenario()

    assert scenario.day.warm_up > scenario.routing.slow_start + scenario.deadline
    assert scenario.day.cool_down >= scenario.deadline


def test_figures_say_of_how_many_requests_they_are_and_how_many_backends_ran(
    production: DayResult,
) -> None:
    spike = phase(production, "spike")

    assert spike.played == round(spike.requests)  # in full: each stands for itself
    assert spike.errors == pytest.approx(spike.failed / spike.played)
    assert spike.most_pods <= SHORT.backends
    assert spike.most_in_region <= SHORT.backends // 3


def test_percentiles_of_few_requests_are_left_out() -> None:
    bucket = Bucket(phase="quiet", start=0.0, weight=1.0, pods=[2, 3])
    bucket.latencies.extend(float(number) for number in range(250))

    quiet = figures("quiet", [bucket])

    assert quiet.p50 is not None
    assert quiet.p95 is not None
    assert quiet.p99 is None
    assert (quiet.fewest_pods, quiet.most_pods, quiet.most_in_region) == (5, 5, 3)


def test_table_and_plot_have_every_policy_and_part(tmp_path: Path, production: DayResult) -> None:
    days = [replace(production, policy=policy) for policy in POLICIES]
    machine = Machine(cpu="", cores=2, memory_gib=1, python="3.11", date="", commit="")
    found = SimulationFile(machine=machine, scenario=SHORT, item_seconds=1.0, days=days)

    assert len(tables(found).splitlines()) == 2 + 4 * len(production.phases) + 3 + 4
    assert "oracle" in draw_days(found, tmp_path).read_text()


def test_a_call_under_way_when_its_region_is_lost_times_out_after_the_idle_timeout() -> None:
    async def lose() -> tuple[object, float]:
        loop = asyncio.get_running_loop()
        world = World(("eu",), cost=Scenario().cost(), random=Random(1), rule=ScalingRule(), most=1)
        world.resize("eu", 1, at_once=True)
        client = SimulatedClient(world, round_trips={"eu": 2e-3}, random=Random(1))
        ended = loop.create_future()
        item = CallItem(scope="tenant:a", remaining=10.0, body=b"\x00\xc8")
        call = Call(
            model=MODEL.name,
            revision=MODEL.revision,
            profile=MODEL.profile,
            task=Task.CLASSIFY,
            parameters=b"",
            items=[item],
        )
        started = client.start_call(
            world.endpoints()[0],
            call,
            deadline=10.0,
            idle_timeout=5.0,
            receive=lambda _: None,
            on_end=ended.set_result,
        )
        loop.call_later(0.1, partial(world.lose, "eu", lost=True))
        await started
        return ended.result(), loop.time()

    end, at = run_virtual(lose())

    assert isinstance(end, CallFailed)
    assert end.cause is Cause.TIMED_OUT
    assert at == pytest.approx(5.1)


def test_a_pool_grows_by_the_rule_and_shrinks_after_the_window() -> None:
    rule = ScalingRule()
    scaler, counts, now = Scaler(rule, most=100), [10], 0.0
    for busy in [10.0] * 8 + [3.0] * 40:
        now += rule.interval
        counts.append(scaler.step(now, counts[-1], queued=0.0, busy=busy))

    grown = max(counts)
    assert counts[1] == 15  # 10 busy backends at 0.7 each
    assert grown == 15
    # The triggers' averages follow within a minute, and the most of the window holds.
    assert min(counts[1 : 8 + int(rule.stabilization // rule.interval)]) == grown
    assert counts[-1] == 5


def test_growth_is_bounded_to_twice_in_half_a_minute() -> None:
    rule = ScalingRule()
    scaler, counts, now = Scaler(rule, most=100), [4], 0.0
    for _ in range(4):
        now += rule.interval
        counts.append(scaler.step(now, counts[-1], queued=100.0, busy=4.0))

    assert counts == [4, 8, 8, 8, 16]


def test_a_process_sends_no_more_probes_than_it_has_time_for() -> None:
    class Counting(ScriptedClient):
        count = 0

        @override
        async def state(self, endpoint: Endpoint, *, time_limit: float) -> ServingState:
            self.count += 1
            return await super().state(endpoint, time_limit=time_limit)

    async def probes(members: int, seconds: float) -> int:
        client = Counting()
        endpoints = [endpoint(f"b-{number}") for number in range(members)]
        client.states = {str(each.backend): state(each.backend) for each in endpoints}
        fleet = Fleet(clock=asyncio.get_running_loop().time, random=Random(1))
        fleet.configure(endpoints, fleet.routing)
        async with Prober(fleet=fleet, client=client, random=Random(1)):
            await asyncio.sleep(seconds)
        return client.count

    few, many = run_virtual(probes(20, 5.0)), run_virtual(probes(1000, 5.0))

    assert few == pytest.approx(20 * 5.0 / 0.5, rel=0.15)
    assert 1000 < many <= 1000 + 1.3 * MOST_PROBES * 5.0
