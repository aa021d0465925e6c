"""How items are settled, with backends that are scripts."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
import pytest

from loadtests.simulate.virtual_time import run_virtual
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.types import Endpoint, ItemOutcome
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.protocol import Call, Done, EmbedItem, Report, Task
from testing.stub_backend import echo, stub_model
from testing.waiting import until
from tests.support.dispatch_scene import EU, US, Scene, failing, item_failure, steps
from tests.support.dispatching import (
    GivenItem,
    GivenWork,
    Outcomes,
    Started,
    dispatch,
    endpoint,
    served,
    state,
    work,
)
from tests.support.scripted_client import Hang, Pause, Step, echo_all

pytestmark = pytest.mark.anyio


async def test_items_are_answered_by_the_preferred_region_in_one_call() -> None:
    scene = Scene()

    outcomes = await scene.run(10)

    assert outcomes.backends() == ["eu-0"] * 10
    assert scene.called() == ["eu-0"]


async def test_one_backend_gets_all_outputs_of_a_text() -> None:
    scene = Scene(endpoints=(EU, endpoint("eu-1")))
    bodies = [
        msgspec.msgpack.encode(body)
        for text in (f"text {number}" for number in range(200))
        for body in (text, EmbedItem(input=text, output="sparse"))
    ]
    items = tuple(GivenItem(index=index, body=body) for index, body in enumerate(bodies))

    async with scene.dispatcher:
        await dispatch(
            scene.dispatcher,
            GivenWork(model=served(), items=items, task=Task.EMBED),
            deadline=scene.loop.time() + 60.0,
            settle=scene.outcomes.settle,
        )

    results = [outcome.result for _, outcome in sorted(scene.outcomes.by_index.items())]
    backends = [msgspec.json.decode(result)["backend"] for result in results]
    assert set(backends) == {"eu-0", "eu-1"}
    assert backends[::2] == backends[1::2]


async def test_a_call_names_revision_profile_scope_and_the_time_left() -> None:
    scene = Scene()

    await scene.run(1, within=3.0)

    (_, call) = scene.client.calls[0]
    assert (call.model, call.revision, call.profile) == ("stub", "aaaaaaaaaaaa", "fp32")
    assert call.items[0].scope == "tenant-a"
    assert 2.5 < call.items[0].remaining <= 3.0


@pytest.mark.parametrize(("count", "is_atomic"), [(1, False), (2, True)])
async def test_only_several_items_are_of_use_as_a_whole(count: int, *, is_atomic: bool) -> None:
    """A call of one item may travel with others."""
    scene = Scene()

    await scene.run(count, atomic=True)

    assert [call.atomic for _, call in scene.client.calls] == [is_atomic]


async def test_the_tokens_of_an_item_include_those_of_known_rows() -> None:
    done = Done(index=0, result=b"{}", rows=1, tokens=3, known=2, known_tokens=4)
    scene = Scene({"eu-0": steps(done, Report())})

    outcome = (await scene.run(1)).by_index[0]

    assert (outcome.rows, outcome.tokens) == (1, 3)
    assert (outcome.known_rows, outcome.input_tokens) == (2, 7)


async def test_outcomes_name_the_revision_that_answered_and_its_shadow() -> None:
    done = Done(index=0, result=b"{}", rows=1, tokens=1, arm="2", shadow="3")
    failed = msgspec.structs.replace(item_failure(1, retryable=False), arm="2")
    scene = Scene({"eu-0": steps(done, failed, Report())})

    outcomes = (await scene.run(2)).by_index

    assert [outcomes[index].arm for index in (0, 1)] == ["2", "2"]
    assert outcomes[0].shadow == "3"


@pytest.mark.parametrize("cause", [Cause.UNREACHABLE, Cause.CUT, Cause.TIMED_OUT])
async def test_a_failed_call_is_repeated_in_the_next_region(cause: Cause) -> None:
    scene = Scene({"eu-0": failing(cause)})

    outcomes = await scene.run(10)

    assert outcomes.backends() == ["us-0"] * 10
    assert {outcome.region for outcome in outcomes.by_index.values()} == {"us"}
    assert scene.called() == ["eu-0", "us-0"]


async def test_a_failed_item_names_the_region_that_was_asked_last() -> None:
    scene = Scene({name: failing(Cause.TIMED_OUT) for name in ("eu-0", "us-0")})

    outcomes = (await scene.run(2)).by_index.values()

    assert scene.called() == ["eu-0", "us-0"]
    assert [(one.source, one.region) for one in outcomes] == [("failed", "us")] * 2


async def test_only_what_a_cut_left_unanswered_is_repeated() -> None:
    async def cut(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        for index in (0, 2, 4):
            yield echo(call, index, target.backend)

    scene = Scene({"eu-0": cut})

    outcomes = await scene.run(6)

    assert outcomes.backends() == ["eu-0", "us-0"] * 3
    assert [len(call.items) for _, call in scene.client.calls] == [6, 3]


async def test_items_that_any_backend_would_fail_are_not_repeated() -> None:
    scene = Scene({"eu-0": steps(item_failure(0, retryable=False, code="too_long"), Report())})

    outcomes = await scene.run(1)

    assert outcomes.codes() == ["too_long"]
    assert scene.called() == ["eu-0"]


async def test_a_failed_item_goes_elsewhere_before_its_slower_mates_end() -> None:
    async def one_fails(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield item_failure(0, retryable=True)
        while not scene.outcomes.by_index:
            yield Pause()
        yield echo(call, 1, target.backend)
        yield Report()

    scene = Scene({"eu-0": one_fails})

    outcomes = await scene.run(2)

    assert list(outcomes.by_index) == [0, 1]
    assert outcomes.backends() == ["us-0", "eu-0"]


async def test_items_a_report_forgot_are_repeated() -> None:
    scene = Scene({"eu-0": steps(Report())})

    assert (await scene.run(3)).backends() == ["us-0"] * 3


async def test_outcomes_of_items_never_sent_or_told_twice_change_nothing() -> None:
    async def confused(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield Done(index=7, result=b"{}", rows=1, tokens=1)
        yield Done(index=-1, result=b"{}", rows=1, tokens=1)
        yield echo(call, 0, target.backend)
        yield item_failure(0, retryable=True)
        yield item_failure(0, retryable=False)
        yield Report()

    scene = Scene({"eu-0": confused})

    assert (await scene.run(1)).backends() == ["eu-0"]
    assert scene.called() == ["eu-0"]


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [(409, "revision_mismatch", True), (404, "model_not_found", False)],
)
async def test_a_backend_that_changed_is_probed_anew_and_others_are_tried(
    status: int, code: str, *, retryable: bool
) -> None:
    changed = failing(Cause.REFUSED, status=status, code=code, retryable=retryable)
    scene = Scene({"eu-0": changed})

    outcomes = await scene.run(2)

    assert outcomes.backends() == ["us-0"] * 2
    assert scene.reprobed == ["eu-0"]


async def test_a_backend_that_does_not_know_our_token_is_left_and_ejected() -> None:
    stranger = failing(Cause.REFUSED, status=401, code="unauthorized", retryable=False)
    scene = Scene({"eu-0": stranger}, routing=RoutingConfig(eject_after=1))

    assert (await scene.run(2)).backends() == ["us-0"] * 2
    assert scene.fleet.statistics()[0].ejected_for > 0


async def test_all_overloaded_is_told_as_overloaded_after_one_try_each() -> None:
    busy = failing(Cause.REFUSED, status=503, code="overloaded")
    scene = Scene({"eu-0": busy, "us-0": busy})

    (failure,) = (await scene.run(1)).failures()

    assert (failure.status, failure.code) == (503, "overloaded")
    assert failure.retry_after is not None
    assert scene.called() == ["eu-0", "us-0"]


async def test_a_large_request_that_is_refused_goes_elsewhere_as_a_whole() -> None:
    scene = Scene({"eu-0": failing(Cause.REFUSED, status=503, code="overloaded")})

    answered = await scene.run(1000, atomic=True)

    assert answered.backends() == ["us-0"] * 1000
    assert all(call.atomic for _, call in scene.client.calls)


async def test_items_of_a_request_that_fail_are_tried_again_together_or_not_at_all() -> None:
    failed = [item_failure(index, retryable=True) for index in range(300)]
    scene = Scene({"eu-0": steps(*failed, Report())})

    codes = (await scene.run(300, atomic=True)).codes()

    assert codes == ["upstream_failed"] * 300
    assert scene.called() == ["eu-0"]


async def test_a_refusal_that_all_would_repeat_is_not_repeated() -> None:
    scene = Scene({"eu-0": failing(Cause.REFUSED, status=400, code="bad_call", retryable=False)})

    assert (await scene.run(1)).codes() == ["bad_call"]
    assert scene.called() == ["eu-0"]


async def test_all_down_fails_within_the_allowed_attempts() -> None:
    down = failing(Cause.UNREACHABLE)
    scene = Scene({"eu-0": down, "us-0": down}, routing=RoutingConfig(attempts=3))

    outcomes = await scene.run(2)

    assert outcomes.codes() == ["upstream_unavailable"] * 2
    assert scene.called() == ["eu-0", "us-0", "eu-0"]


async def test_no_backend_at_all_is_unavailable() -> None:
    scene = Scene(endpoints=())

    assert (await scene.run(2)).codes() == ["upstream_unavailable"] * 2


async def test_a_model_that_was_removed_from_all_backends_meanwhile_is_unknown() -> None:
    """The request began while it was served."""
    scene = Scene(endpoints=(EU,))
    scene.fleet.observe(EU, state("eu-0", models=[stub_model("other")]))

    (outcome,) = (await scene.run(1)).by_index.values()

    assert outcome.failure is not None
    assert (outcome.failure.status, outcome.failure.code) == (404, "model_not_found")
    assert not outcome.failure.retryable


async def test_a_model_whose_backend_loads_it_again_is_unavailable() -> None:
    scene = Scene()
    scene.fleet.observe(EU, state("eu-0", models=[stub_model("other")]))
    scene.fleet.observe(US, state("us-0", models=[], ready=False))

    assert (await scene.run(1)).codes() == ["upstream_unavailable"]


async def test_a_lone_backend_is_tried_again_after_a_lost_connection_only() -> None:
    tries = 0

    async def flaky(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        nonlocal tries
        tries += 1
        if tries == 1:
            yield CallFailed(Cause.CUT, "reset")
        async for step in echo_all(target, call):
            yield step

    scene = Scene({"eu-0": flaky}, endpoints=(EU,))
    silent = Scene({"eu-0": failing(Cause.TIMED_OUT)}, endpoints=(EU,))

    assert (await scene.run(1)).backends() == ["eu-0"]
    assert (await silent.run(1)).codes() == ["upstream_unavailable"]
    assert silent.called() == ["eu-0"]


def test_silence_ends_an_attempt_and_the_next_region_answers() -> None:
    """On virtual time: a machine that stalls would end the second attempt, too."""

    async def answered() -> tuple[list[str], float]:
        scene = Scene({"eu-0": steps(Hang())}, routing=RoutingConfig(attempt_timeout=0.05))
        outcomes = await scene.run(4)
        return outcomes.backends(), scene.loop.time()

    backends, took = run_virtual(answered())

    assert backends == ["us-0"] * 4
    assert took == pytest.approx(0.05)


async def test_what_is_open_at_the_deadline_has_exceeded_it() -> None:
    scene = Scene({"eu-0": steps(Hang()), "us-0": steps(Hang())})
    started = scene.loop.time()

    outcomes = await scene.run(3, within=0.1)

    assert outcomes.codes() == ["deadline_exceeded"] * 3
    assert scene.loop.time() - started > 0.09


async def test_who_is_late_behind_the_work_of_others_is_refused_as_overload() -> None:
    scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))
    scene.fleet.started(EU, 40)  # of another request: 0.2 s, as nothing has been measured

    async with scene.dispatcher:
        deadline = scene.loop.time() + 0.1
        settle = scene.outcomes.settle
        await dispatch(scene.dispatcher, work(1), deadline=deadline, settle=settle)

    (failure,) = scene.outcomes.failures()
    assert failure.code == "deadline_exceeded"  # who joined it may have more time
    assert failure.is_overload
    assert failure.retry_after == pytest.approx(0.2)


async def test_who_is_late_because_of_its_own_work_is_late() -> None:
    scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))

    outcomes = await scene.run(40, within=0.1)

    assert not any(failure.is_overload for failure in outcomes.failures())


@pytest.mark.parametrize("code", ["overloaded", "not_ready"])
def test_who_is_late_while_the_backend_refuses_others_is_refused_as_overload(
    code: str,
) -> None:
    refusal = CallFailed(Cause.REFUSED, "busy", status=503, code=code, retryable=True)
    calls: Iterator[list[Step]] = iter([[Hang()], [refusal]])

    async def once_in_vain(_: Endpoint, __: Call) -> AsyncIterator[Step]:
        for step in next(calls):
            yield step

    async def late_outcomes() -> Outcomes:
        routing = RoutingConfig(attempt_timeout=120.0)
        scene = Scene({"eu-0": once_in_vain}, endpoints=(EU,), routing=routing)
        other = Outcomes()
        async with scene.dispatcher:
            deadline, settle = scene.loop.time() + 60.0, scene.outcomes.settle
            late = Started(work(2), deadline=deadline, settle=settle).start(scene.dispatcher)
            await until(lambda: scene.called() == ["eu-0"])
            await dispatch(scene.dispatcher, work(2), deadline=deadline, settle=other.settle)
            await late.ended.wait()
        return scene.outcomes

    outcomes = run_virtual(late_outcomes())

    assert outcomes.codes() == ["deadline_exceeded"] * 2
    assert {failure.is_overload for failure in outcomes.failures()} == {code == "overloaded"}


async def test_nothing_is_called_after_the_deadline() -> None:
    scene = Scene()

    assert (await scene.run(2, within=-1.0)).codes() == ["deadline_exceeded"] * 2
    assert scene.called() == []


async def test_a_caller_that_goes_away_leaves_its_items_settled_as_cancelled() -> None:
    scene = Scene({"eu-0": steps(Hang())})
    async with scene.dispatcher:
        running = asyncio.create_task(
            dispatch(
                scene.dispatcher,
                work(2),
                deadline=scene.loop.time() + 5.0,
                settle=scene.outcomes.settle,
            )
        )
        await until(lambda: scene.called() == ["eu-0"])
        running.cancel()
        await asyncio.wait((running,))

    assert running.cancelled()
    assert scene.outcomes.codes() == ["cancelled"] * 2


async def test_closing_the_dispatcher_ends_runs_at_once() -> None:
    scene = Scene({"eu-0": steps(Hang())})
    async with scene.dispatcher:
        running = asyncio.create_task(
            dispatch(
                scene.dispatcher,
                work(2),
                deadline=scene.loop.time() + 60.0,
                settle=scene.outcomes.settle,
            )
        )
        await until(lambda: scene.called() == ["eu-0"])
    await asyncio.wait_for(running, 60.0)

    assert scene.outcomes.codes() == ["cancelled"] * 2


async def test_a_backend_is_told_the_time_that_is_left_without_the_way_there_and_back() -> None:
    scene = Scene(endpoints=(EU,))
    scene.fleet.observe(EU, state("eu-0"), took=100.0)
    await scene.run(1, within=600.0)
    near = scene.client.calls[-1][1].items[0].remaining

    other = Scene(endpoints=(EU,))
    other.fleet.observe(EU, state("eu-0"), took=6000.0)
    await other.run(1, within=600.0)
    far = other.client.calls[-1][1].items[0].remaining

    assert 400.0 < near <= 500.0
    assert 200.0 < far <= 300.0


async def test_items_that_fail_together_are_settled_together() -> None:
    scene = Scene({"eu-0": failing(Cause.REFUSED, status=503, code="overloaded")}, endpoints=(EU,))
    settled: list[int] = []
    collect = scene.outcomes.settle

    def settle(outcomes: Sequence[tuple[int, ItemOutcome]]) -> None:
        settled.append(len(outcomes))
        collect(outcomes)

    async with scene.dispatcher:
        await dispatch(
            scene.dispatcher, work(500), deadline=scene.loop.time() + 60.0, settle=settle
        )

    assert settled == [500]
