"""Dispatch over real sockets to backends that die, hang, cut, refuse and change."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.dispatcher import Dispatcher
from sluicegate.gateway.dispatch.prober import Prober
from sluicegate.gateway.routing.endpoint_state import Health
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import Endpoint, ServedModel
from sluicegate.gateway.upstream.http import HttpBackendClient
from testing.stub_backend import (
    StubBackend,
    answer_when,
    cut_after,
    fail_items,
    hang,
    refuse,
    stub_model,
)
from testing.stub_process import StubProcess, stub_process
from testing.waiting import until
from tests.support.dispatching import Outcomes, dispatch, endpoint, endpoint_of, work

pytestmark = pytest.mark.anyio
SLOW = "answer_slowly"

# Long enough that no probe but the first, and those asked for, takes part in a test, and that
# nothing is late, or spills to the other region, on a busy machine.
UNPROBED = RoutingConfig(
    probe_interval=60.0,
    probe_timeout=30.0,
    attempt_timeout=5.0,
    connect_timeout=20.0,
    spill_after=60.0,
)


class Stack:
    """The gateway's part below inference, as the worker builds it."""

    def __init__(self, endpoints: Sequence[Endpoint], routing: RoutingConfig) -> None:
        loop = asyncio.get_running_loop()
        self.fleet = Fleet(clock=loop.time, random=Random(1))
        self.client = HttpBackendClient()
        self.prober = Prober(fleet=self.fleet, client=self.client, random=Random(2))
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            client=self.client,
            reprobe=self.prober.probe_soon,
            clock=loop.time,
        )
        self.fleet.configure(endpoints, routing)
        self.client.configure(endpoints, routing)

    def model(self) -> ServedModel:
        model = self.fleet.model("stub")
        assert model is not None
        return model

    async def run(self, count: int, *, within: float = 60.0, outcomes: Outcomes) -> float:
        """Run `count` items as one request, and return the seconds it took."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        await dispatch(
            self.dispatcher,
            work(count, model=self.model()),
            deadline=started + within,
            settle=outcomes.settle,
        )
        assert len(outcomes.by_index) == count
        return loop.time() - started

    def health(self) -> dict[str, Health]:
        return {str(each.backend): each.health for each in self.fleet.statistics()}


@asynccontextmanager
async def stack_of(
    *backends: StubBackend | Endpoint, routing: RoutingConfig = UNPROBED
) -> AsyncIterator[Stack]:
    endpoints = [each if isinstance(each, Endpoint) else endpoint_of(each) for each in backends]
    stack = Stack(endpoints, routing)
    async with stack.client, stack.prober, stack.dispatcher:
        await stack.prober.wait_for_first_probes()
        yield stack


def process_endpoint(process: StubProcess, backend: str, region: str) -> Endpoint:
    return endpoint(backend, region=region, url=process.url)


@asynccontextmanager
async def two_regions() -> AsyncIterator[tuple[StubBackend, StubBackend]]:
    async with (
        StubBackend(backend_id="eu-0") as eu,
        StubBackend(backend_id="us-0", region="us") as us,
    ):
        yield eu, us


async def test_a_backend_killed_amid_a_thousand_requests_loses_none_of_them() -> None:
    """Requests of one item each, at most 100 at a time, `kill -9` after the first 200."""
    outcomes = Outcomes()
    gate = asyncio.Semaphore(100)
    killed = asyncio.Event()
    with (
        stub_process(backend_id="eu-0", behaviour=SLOW) as eu,
        stub_process(backend_id="us-0", region="us", behaviour=SLOW) as us,
    ):
        endpoints = (process_endpoint(eu, "eu-0", "eu"), process_endpoint(us, "us-0", "us"))
        async with stack_of(
            *endpoints, routing=RoutingConfig(probe_timeout=30.0, spill_after=60.0)
        ) as stack:
            loop = asyncio.get_running_loop()
            given = work(1000, model=stack.model())

            async def one(index: int) -> None:
                async with gate:
                    await dispatch(
                        stack.dispatcher,
                        msgspec.structs.replace(given, items=(given.items[index],)),
                        deadline=loop.time() + 10.0,
                        settle=outcomes.settle,
                    )
                if len(outcomes.by_index) > 200 and not killed.is_set():
                    killed.set()
                    eu.process.kill()

            await asyncio.gather(*(one(index) for index in range(1000)))
            calls = stack.dispatcher.statistics().calls

    answered = outcomes.backends()
    assert len(answered) == 1000
    assert answered.count("eu-0") >= 20
    assert answered.count("us-0") >= 500
    assert calls <= 1200


async def test_a_backend_killed_amid_one_large_request_keeps_what_it_answered() -> None:
    outcomes = Outcomes()
    with (
        stub_process(backend_id="eu-0", behaviour=SLOW) as eu,
        stub_process(backend_id="us-0", region="us") as us,
    ):
        endpoints = (process_endpoint(eu, "eu-0", "eu"), process_endpoint(us, "us-0", "us"))
        async with stack_of(
            *endpoints, routing=RoutingConfig(probe_timeout=30.0, spill_after=60.0)
        ) as stack:
            running = asyncio.create_task(stack.run(1000, outcomes=outcomes))
            await until(lambda: len(outcomes.by_index) >= 100)
            eu.process.kill()
            await running

    answered = outcomes.backends()
    assert answered.count("eu-0") >= 100
    assert answered.count("us-0") >= 500
    assert answered.count("eu-0") + answered.count("us-0") == 1000


async def test_a_stopped_process_is_left_for_the_next_region_in_time() -> None:
    """SIGSTOP: the kernel still accepts connections, nothing answers."""
    outcomes, later = Outcomes(), Outcomes()
    routing = RoutingConfig(attempt_timeout=2.0, probe_interval=0.1, probe_timeout=2.0)
    with (
        stub_process(backend_id="eu-0") as eu,
        stub_process(backend_id="us-0", region="us") as us,
    ):
        endpoints = (process_endpoint(eu, "eu-0", "eu"), process_endpoint(us, "us-0", "us"))
        async with stack_of(*endpoints, routing=routing) as stack:
            eu.process.send_signal(signal.SIGSTOP)
            await stack.run(5, outcomes=outcomes)
            await until(lambda: stack.health()["eu-0"] is Health.NOT_READY)
            await stack.run(5, outcomes=later)
            eu.process.send_signal(signal.SIGCONT)
            await until(lambda: stack.health()["eu-0"] is Health.READY)

    assert outcomes.backends() == later.backends() == ["us-0"] * 5


async def test_a_hanging_backend_costs_one_attempt_timeout() -> None:
    outcomes = Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        eu.behaviour = hang

        took = await stack.run(3, outcomes=outcomes)

    assert outcomes.backends() == ["us-0"] * 3
    assert took > UNPROBED.attempt_timeout - 0.01
    assert len(eu.calls) == 1


async def test_a_cut_stream_keeps_what_arrived_and_repeats_the_rest() -> None:
    outcomes = Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        eu.behaviour = cut_after(7)

        await stack.run(16, outcomes=outcomes)

    assert outcomes.backends() == ["eu-0"] * 7 + ["us-0"] * 9
    assert [len(call.items) for call in us.calls] == [9]


async def test_a_slow_item_holds_nobody() -> None:
    gate = asyncio.Event()
    outcomes = Outcomes()
    routing = RoutingConfig(
        attempt_timeout=30.0, probe_timeout=30.0, connect_timeout=20.0, spill_after=60.0
    )
    async with two_regions() as (eu, us), stack_of(eu, us, routing=routing) as stack:
        eu.behaviour = answer_when(gate, index=3)

        running = asyncio.create_task(stack.run(8, outcomes=outcomes))
        await until(lambda: len(outcomes.by_index) == 7)
        early = sorted(outcomes.by_index)
        gate.set()
        await running

    assert early == [0, 1, 2, 4, 5, 6, 7]
    assert outcomes.backends() == ["eu-0"] * 8


async def test_only_the_items_that_failed_are_tried_elsewhere() -> None:
    outcomes = Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        eu.behaviour = fail_items(1, 4)

        await stack.run(6, outcomes=outcomes)

    assert outcomes.backends() == ["eu-0", "us-0", "eu-0", "eu-0", "us-0", "eu-0"]
    assert [len(call.items) for call in us.calls] == [2]


@pytest.mark.parametrize("within", [0.1, 0.5])
async def test_the_deadline_holds_when_everything_hangs(within: float) -> None:
    outcomes = Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        eu.behaviour = us.behaviour = hang

        took = await stack.run(4, within=within, outcomes=outcomes)
        await eu.wait_for(lambda: eu.open_connections <= 1)

    assert outcomes.codes() == ["deadline_exceeded"] * 4
    assert took > within - 0.01


async def test_all_down_is_told_at_once() -> None:
    outcomes = Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        await eu.stop()
        await us.stop()

        await stack.run(4, outcomes=outcomes)

    assert {failure.status for failure in outcomes.failures()} == {503}
    assert outcomes.codes() == ["upstream_unavailable"] * 4
    assert all(failure.retry_after for failure in outcomes.failures())


async def test_backends_that_return_are_used_again() -> None:
    before, during, after = Outcomes(), Outcomes(), Outcomes()
    # However late a probe is on a busy machine, nothing spills to the other region.
    routing = RoutingConfig(
        probe_interval=0.1,
        probe_timeout=30.0,
        eject_for=60.0,
        eject_after=1,
        slow_start=1e-3,
        spill_after=60.0,
    )
    async with two_regions() as (eu, us), stack_of(eu, us, routing=routing) as stack:
        await stack.run(1, outcomes=before)
        await eu.stop()
        await stack.run(1, outcomes=during)
        await until(lambda: stack.health()["eu-0"] is Health.NOT_READY)
        await eu.start()
        await until(lambda: stack.health()["eu-0"] is Health.READY)
        await stack.run(1, outcomes=after)

    assert before.backends() == after.backends() == ["eu-0"]
    assert during.backends() == ["us-0"]


async def test_a_backend_that_changed_its_revision_is_asked_again_and_left() -> None:
    outcomes, later = Outcomes(), Outcomes()
    async with two_regions() as (eu, us), stack_of(eu, us) as stack:
        eu.models = [stub_model(revision="bbbbbbbbbbbb")]
        eu.behaviour = refuse("revision_mismatch", status=409)
        probes = eu.probes

        await stack.run(2, outcomes=outcomes)
        await until(lambda: stack.model().info.revision == "bbbbbbbbbbbb")
        eu.behaviour = fail_items()
        await stack.run(2, outcomes=later)

    assert outcomes.backends() == ["us-0"] * 2
    assert later.backends() == ["eu-0"] * 2
    assert eu.probes > probes


async def test_cancelled_requests_leave_no_call_behind() -> None:
    gate = asyncio.Event()
    async with (
        two_regions() as (eu, us),
        stack_of(eu, us, routing=RoutingConfig(connect_timeout=5.0, spill_after=60.0)) as stack,
    ):
        eu.behaviour = answer_when(gate)
        runs = []
        for _ in range(200):
            outcomes = Outcomes()
            runs.append(asyncio.create_task(stack.run(1, outcomes=outcomes)))
        await eu.wait_for(lambda: sum(len(call.items) for call in eu.calls) >= 50)
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        async with asyncio.timeout(60.0):
            await eu.wait_for(lambda: eu.open_connections <= 1)  # the prober's
        eu.behaviour = fail_items()

        quick = [Outcomes() for _ in range(300)]
        await asyncio.gather(*(stack.run(1, outcomes=each) for each in quick))

    assert all(run.cancelled() for run in runs)
    assert {name for each in quick for name in each.backends()} == {"eu-0"}
