"""Items of different requests travel in one call, and end each on its own."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadtests.simulate.virtual_time import run_virtual
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch import failures
from sluicegate.gateway.dispatch.dispatcher import GATHERING_DELAY
from sluicegate.gateway.routing.endpoint_state import ProbeFailure
from sluicegate.gateway.types import Criticality, Endpoint, ItemOutcome
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Call, Report, Task
from testing.stub_backend import echo, stub_model
from testing.waiting import until
from tests.support.dispatch_scene import EU, Scene, failing, item_failure, steps
from tests.support.dispatching import GivenWork, Outcomes, Started, served, state, work
from tests.support.scripted_client import Hang, Step

pytestmark = pytest.mark.anyio

MODEL = served()


def single(number: int) -> GivenWork:
    """Return work whose only item is the text `text <number>`, of that index."""
    (item,) = work(number + 1).items[number:]
    return replace(work(1, model=MODEL), items=(item,), atomic=True)


class Asked:
    """Works of one item that were started in one iteration of the loop."""

    def __init__(self, scene: Scene, works: Sequence[GivenWork], *, within: float = 60.0) -> None:
        self.outcomes = [Outcomes() for _ in works]
        deadline = scene.loop.time() + within
        self.started = [
            Started(each, deadline=deadline, settle=outcomes.settle).start(scene.dispatcher)
            for each, outcomes in zip(works, self.outcomes, strict=True)
        ]

    async def ended(self) -> list[list[str]]:
        """Return who answered, or why nobody did, once all have ended."""
        await until(lambda: all(each.by_index for each in self.outcomes))
        return [each.codes() or each.backends() for each in self.outcomes]


async def test_they_are_one_call_and_each_hears_of_its_own_item() -> None:
    scene = Scene(endpoints=(EU,))

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(5)])
        assert scene.dispatcher.in_progress
        assert await asked.ended() == [["eu-0"]] * 5

    ((_, call),) = scene.client.calls
    assert len(call.items) == 5
    assert [list(each.by_index) for each in asked.outcomes] == [[n] for n in range(5)]
    assert scene.dispatcher.in_progress == 0


@pytest.mark.parametrize(
    "unlike",
    [
        {"model": served("other")},
        {"task": Task.EMBED},
        {"parameters": b"\x81\xa5top_k\x01"},
        {"lane": "bulk"},
        {"truncate": False},
    ],
)
async def test_those_that_differ_travel_apart(unlike: dict[str, Any]) -> None:
    scene = Scene(endpoints=(EU,))
    scene.fleet.observe(EU, state("eu-0", models=[stub_model(), stub_model("other")]))

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), replace(single(1), **unlike), single(3)])
        assert await asked.ended() == [["eu-0"]] * 3

    assert sorted(len(call.items) for _, call in scene.client.calls) == [1, 2]


async def test_a_request_of_several_items_travels_alone() -> None:
    scene = Scene(endpoints=(EU,))

    async with scene.dispatcher:
        several = work(3, model=MODEL, atomic=True)
        asked = Asked(scene, [single(0), several, single(1)])
        assert await asked.ended() == [["eu-0"], ["eu-0"] * 3, ["eu-0"]]

    assert sorted((len(call.items), call.atomic) for _, call in scene.client.calls) == [
        (2, False),
        (3, True),
    ]


def test_a_busy_backend_gets_what_comes_within_the_delay_in_one_call() -> None:
    async def sizes() -> list[int]:
        scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))
        loop = scene.loop
        async with scene.dispatcher:
            Asked(scene, [single(0)])
            await until(lambda: len(scene.client.calls) == 1)
            began = loop.time()
            for number in range(1, 5):
                Asked(scene, [single(number)])
                due = loop.create_future()
                loop.call_at(began + number * GATHERING_DELAY / 3, due.set_result, None)
                await due
            await until(lambda: len(scene.client.calls) == 3)
        return [len(call.items) for _, call in scene.client.calls]

    # None came shortly before the second one, so it waits for no others.
    assert run_virtual(sizes()) == [1, 1, 3]


def test_an_item_waits_for_others_after_several_were_answered_together() -> None:
    async def sizes() -> list[int]:
        answered = asyncio.Event()

        async def script(_: Endpoint, call: Call) -> AsyncIterator[Step]:
            if len(call.items) > 1 and not answered.is_set():
                await answered.wait()
                yield tuple(echo(call, index, "eu-0") for index in range(len(call.items)))
                yield Report()
            yield Hang()

        scene = Scene({"eu-0": script}, endpoints=(EU,))
        async with scene.dispatcher:
            for number in range(3):  # the first goes at once, and keeps the backend busy
                Asked(scene, [single(number)])
                await asyncio.sleep(0)
            later = scene.loop.call_later
            later(3.0 * GATHERING_DELAY, answered.set)
            later(3.4 * GATHERING_DELAY, Asked, scene, [single(3)])
            later(3.8 * GATHERING_DELAY, Asked, scene, [single(4)])
            await until(lambda: len(scene.client.calls) > 2)
        return [len(call.items) for _, call in scene.client.calls]

    assert run_virtual(sizes()) == [1, 2, 2]


async def test_one_that_is_cancelled_leaves_the_others_their_answers() -> None:
    scene = Scene(endpoints=(EU,))

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(3)])
        asked.started[0].cancel()
        await asyncio.sleep(0)
        asked.started[2].cancel()
        ended = await asked.ended()
        asked.started[1].cancel()

    assert ended == [[failures.CANCELLED.code], ["eu-0"], [failures.CANCELLED.code]]
    ((_, call),) = scene.client.calls
    assert len(call.items) == 2


def test_an_idle_backend_gets_an_item_at_once() -> None:
    async def times() -> list[float]:
        scene = Scene(endpoints=(EU,))
        sent: list[float] = []
        async with scene.dispatcher:
            for number in range(3):
                await Asked(scene, [single(number)]).started[0].ended.wait()
                sent.append(scene.loop.time())
        return sent

    assert run_virtual(times()) == [0.0, 0.0, 0.0]


def test_no_one_joins_a_call_that_was_given_up_before_it_was_sent() -> None:
    async def ended() -> list[list[str]]:
        scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))
        async with scene.dispatcher:
            Asked(scene, [single(0)])
            await until(lambda: len(scene.client.calls) == 1)
            given_up = Asked(scene, [single(1)])
            await asyncio.sleep(0)
            given_up.started[0].cancel()
            scene.scripts = {}
            joins = Asked(scene, [single(2)])
            return [*await given_up.ended(), *await joins.ended()]

    assert run_virtual(ended()) == [[failures.CANCELLED.code], ["eu-0"]]


async def test_the_last_one_to_be_cancelled_ends_the_call() -> None:
    scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), single(1)])
        await until(lambda: bool(scene.client.calls))
        asked.started[0].cancel()
        assert scene.dispatcher.in_progress == 1
        asked.started[1].cancel()
        assert scene.dispatcher.in_progress == 0

    assert await asked.ended() == [[failures.CANCELLED.code]] * 2
    assert all(each.in_flight == 0 for each in scene.fleet.statistics())


async def test_what_was_cancelled_is_tried_nowhere_else() -> None:
    scene = Scene({"eu-0": steps(Hang())})

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(3)])
        await until(lambda: bool(scene.client.calls))
        asked.started[0].cancel()
        scene.fleet.observe(EU, ProbeFailure(detail="refused"))
        ended = await asked.ended()

    assert ended == [[failures.CANCELLED.code], ["us-0"], ["us-0"]]
    assert [len(call.items) for _, call in scene.client.calls] == [3, 2]


async def test_a_call_whose_items_are_all_cancelled_ends_while_others_go_on() -> None:
    endpoints = (EU, replace(EU, backend="eu-1", url="http://eu-1.invalid"))
    hangs = steps(Hang())
    scene = Scene({"eu-0": hangs, "eu-1": hangs}, endpoints=endpoints)

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(12)])
        await until(lambda: len(scene.client.calls) == 2)
        (_, call), _ = scene.client.calls
        first = {msgspec.msgpack.decode(item.body) for item in call.items}
        for number in range(12):
            if f"text {number}" in first:
                asked.started[number].cancel()
        in_flight = [each.in_flight for each in scene.fleet.statistics()]

    assert sorted(in_flight) == [0, 12 - len(first)]


async def test_a_backend_that_fails_half_of_the_requests_of_a_call_is_blamed() -> None:
    async def half_fail(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        for index in range(len(call.items)):
            fails = index % 2 == 0
            yield item_failure(index, retryable=True) if fails else echo(call, index, "eu-0")
        yield Report()

    scene = Scene({"eu-0": half_fail}, routing=RoutingConfig(eject_after=1))

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(4)])
        assert await asked.ended() == [["us-0"], ["eu-0"]] * 2

    assert scene.fleet.statistics()[0].failures == 1


async def test_a_dispatcher_that_closes_settles_what_it_has_not_sent() -> None:
    scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), single(1)])

    assert await asked.ended() == [[failures.CANCELLED.code]] * 2


async def test_a_fault_of_one_costs_no_other_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(endpoints=(EU,))

    def broken(_: Sequence[tuple[int, ItemOutcome]]) -> None:
        raise ZeroDivisionError

    async with scene.dispatcher:
        deadline = scene.loop.time() + 60.0
        Started(single(0), deadline=deadline, settle=broken).start(scene.dispatcher)
        asked = Asked(scene, [single(1)])
        assert await asked.ended() == [["eu-0"]]

    assert "a background task failed" in caplog.text


async def test_those_of_a_lost_call_are_tried_elsewhere() -> None:
    scene = Scene({"eu-0": failing(Cause.CUT)})

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(4)])
        assert await asked.ended() == [["us-0"]] * 4

    # In two calls, as one of the items may be what the backend died of.
    assert scene.called() == ["eu-0", "us-0", "us-0"]


async def test_a_bug_on_the_way_to_another_backend_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene({"eu-0": steps(item_failure(0, retryable=True), Hang())})

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    async with scene.dispatcher:
        monkeypatch.setattr(scene.fleet, "candidates", fail)
        asked = Asked(scene, [single(0)])
        assert await asked.ended() == [["internal_error"]]


async def test_each_one_refused_takes_its_own_from_the_retry_budget() -> None:
    refused = CallFailed(Cause.REFUSED, "full", status=503, code="overloaded")
    scene = Scene({"eu-0": steps(refused)}, clock=lambda: 0.0)

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(200)])
        ended = await asked.ended()

    # What the budget holds at first, and a fifth of what was tried.
    assert ended.count(["us-0"]) == 140
    assert ended.count(["overloaded"]) == 60


async def test_each_goes_to_the_backend_that_it_would_go_to_alone() -> None:
    alone: list[str] = []
    endpoints = (EU, replace(EU, backend="eu-1", url="http://eu-1.invalid"))
    for number in range(12):
        scene = Scene(endpoints=endpoints)
        async with scene.dispatcher:
            ((backend,),) = await Asked(scene, [single(number)]).ended()
            alone.append(backend)

    scene = Scene(endpoints=endpoints, routing=RoutingConfig())
    async with scene.dispatcher:
        together = await Asked(scene, [single(number) for number in range(12)]).ended()

    assert len(scene.client.calls) == 2 == len(set(alone))
    assert sum(one == [backend] for one, backend in zip(together, alone, strict=True)) >= 10


async def test_those_that_have_ended_hold_no_place_while_another_takes_long() -> None:
    async def last_hangs(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield echo(call, 0, target.backend)
        yield echo(call, 1, target.backend)
        yield item_failure(2, retryable=True)
        yield Hang()

    scene = Scene({"eu-0": last_hangs})

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(4)])
        await until(lambda: all(each.by_index for each in asked.outcomes[:3]))
        eu, us = scene.fleet.statistics()

    assert (eu.in_flight, us.in_flight) == (1, 0)
    assert all(each.in_flight == 0 for each in scene.fleet.statistics())


async def test_those_that_are_refused_do_not_all_come_back_at_one_time() -> None:
    scene = Scene(endpoints=(EU,))
    scene.fleet.started(EU, 5000)

    async with scene.dispatcher:
        works = [replace(single(n), criticality=Criticality.SHEDDABLE) for n in range(20)]
        asked = Asked(scene, works)
        assert await asked.ended() == [["overloaded"]] * 20

    failures_of_all = [failure for each in asked.outcomes for failure in each.failures()]
    assert len({failure.retry_after for failure in failures_of_all}) == 20


async def test_a_report_before_the_answers_is_no_end() -> None:
    scene = Scene({"eu-0": steps(Report())}, endpoints=(EU,))

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), single(1)])
        assert [len(codes) for codes in await asked.ended()] == [1, 1]


async def test_an_item_that_is_tried_twice_holds_its_first_place_too() -> None:
    is_lost, may_end = asyncio.Event(), asyncio.Event()

    async def slow(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await is_lost.wait()
        yield echo(call, 0, target.backend)
        await may_end.wait()
        yield echo(call, 1, target.backend)
        yield Report()

    scene = Scene({"eu-0": slow, "us-0": steps(Hang())})

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), single(1)])
        await until(lambda: bool(scene.client.calls))
        scene.fleet.observe(EU, ProbeFailure(detail="refused"))
        is_lost.set()
        await until(lambda: bool(asked.outcomes[0].by_index))
        in_flight = [each.in_flight for each in scene.fleet.statistics()]
        may_end.set()
        await asked.ended()

    assert in_flight == [1, 2]


async def test_a_call_that_others_answered_is_not_ended_for_a_stranger() -> None:
    scene = Scene(endpoints=(EU, replace(EU, backend="eu-1", url="http://eu-1.invalid")))
    lost: list[Endpoint] = []

    async def answers_the_lost(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        if not lost or target in lost:
            yield Hang()
        for index in range(len(call.items)):
            yield echo(call, index, target.backend)
        yield Report()

    scene.scripts = dict.fromkeys(("eu-0", "eu-1"), answers_the_lost)

    async with scene.dispatcher:
        asked = Asked(scene, [single(number) for number in range(12)])
        await until(lambda: len(scene.client.calls) == 2)
        (gone, call), _ = scene.client.calls
        first = {msgspec.msgpack.decode(item.body) for item in call.items}
        lost.append(gone)
        scene.fleet.observe(gone, ProbeFailure(detail="refused"))
        others = [number for number in range(12) if f"text {number}" not in first]
        await until(lambda: sum(bool(each.by_index) for each in asked.outcomes) == len(first))
        asked.started[others[0]].cancel()
        in_flight = {each.backend: each.in_flight for each in scene.fleet.statistics()}

    assert in_flight[gone.backend] == len(first)


async def test_the_place_of_an_answered_item_is_freed_once() -> None:
    may_end = asyncio.Event()

    async def one_then_cut(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        if len(call.items) == 1:
            yield Hang()
        yield echo(call, 0, target.backend)
        await may_end.wait()

    scene = Scene({"eu-0": one_then_cut}, endpoints=(EU,), routing=RoutingConfig(attempts=1))

    async with scene.dispatcher:
        asked = Asked(scene, [single(0), single(1)])
        await until(lambda: bool(asked.outcomes[0].by_index))
        Asked(scene, [single(2)])
        await until(lambda: len(scene.client.calls) == 2)
        may_end.set()
        await asked.ended()
        (eu,) = scene.fleet.statistics()

    assert eu.in_flight == 1


def test_a_cancelled_item_takes_no_credit_for_a_hedge() -> None:
    async def ended() -> tuple[list[list[str]], int]:
        scene = Scene({"eu-0": steps(Hang())}, routing=RoutingConfig(hedge_share=0.5))
        latencies = scene.dispatcher.hedging.of((MODEL.info.name, work(1).task))
        for _ in range(100):
            latencies.note(0.1)
        async with scene.dispatcher:
            asked = Asked(scene, [single(0), single(1)])
            await until(lambda: bool(scene.client.calls))
            asked.started[0].cancel()
            return await asked.ended(), scene.dispatcher.statistics().hedged

    assert run_virtual(ended()) == ([[failures.CANCELLED.code], ["us-0"]], 1)


def test_each_ends_at_its_own_deadline_and_a_call_with_the_last() -> None:
    async def ends() -> tuple[list[float], list[float], int]:
        routing = RoutingConfig(attempt_timeout=60.0)
        scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,), routing=routing)
        ended: list[float] = []
        async with scene.dispatcher:
            for number, within in enumerate((20.0, 5.0)):
                Started(
                    single(number),
                    deadline=scene.loop.time() + within,
                    settle=lambda _: ended.append(scene.loop.time()),
                ).start(scene.dispatcher)
            await until(lambda: len(ended) == 2)
            in_progress = scene.dispatcher.in_progress
        ((_, call),) = scene.client.calls
        return ended, [item.remaining for item in call.items], in_progress

    ended, remaining, in_progress = run_virtual(ends())

    assert ended == pytest.approx([5.0, 20.0], abs=0.1)
    assert remaining == pytest.approx([20.0, 5.0], abs=0.1)
    assert in_progress == 0


@pytest.mark.parametrize(("count", "size", "calls"), [(300, 1, [256, 44]), (3, 100_000, [2, 1])])
async def test_no_call_is_larger_than_a_backend_takes_at_once(
    count: int, size: int, calls: list[int]
) -> None:
    scene = Scene(endpoints=(EU,))
    body = msgspec.msgpack.encode("x" * size)
    item = replace(work(1).items[0], body=body)

    async with scene.dispatcher:
        asked = Asked(scene, [replace(single(0), items=(item,))] * count)
        await until(lambda: all(each.by_index for each in asked.outcomes))

    assert [len(call.items) for _, call in scene.client.calls] == calls


async def test_each_item_keeps_the_trace_of_its_own_request() -> None:
    scene = Scene(endpoints=(EU,))

    async with scene.dispatcher:
        ends = [Outcomes(), Outcomes()]
        for number, outcomes in enumerate(ends):
            Started(
                single(number),
                deadline=scene.loop.time() + 60.0,
                settle=outcomes.settle,
                traceparent=f"trace-{number}",
            ).start(scene.dispatcher)
        await until(lambda: all(each.by_index for each in ends))

    ((_, call),) = scene.client.calls
    assert [item.traceparent for item in call.items] == ["trace-0", "trace-1"]
