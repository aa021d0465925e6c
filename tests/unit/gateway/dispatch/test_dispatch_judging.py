"""What the dispatcher learns, counts and tells others while it works."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.routing.endpoint_state import ProbeFailure
from sluicegate.gateway.telemetry.spans import NO_ATTRIBUTES, Attributes, Span
from sluicegate.gateway.telemetry.tracing import Tracer
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import Cause
from sluicegate.wire.protocol import Call, Report, Task
from testing.stub_backend import echo
from testing.waiting import until
from tests.support.dispatch_scene import EU, Scene, failing, item_failure, steps
from tests.support.dispatching import Outcomes, Started, dispatch, work
from tests.support.scripted_client import Hang, Step

pytestmark = pytest.mark.anyio


async def test_retries_of_failed_items_are_limited_by_the_budget() -> None:
    """A quarter of 2,000 items fails everywhere: 20 % and the base credit may be tried again."""

    async def every_fourth_fails(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        for index in range(len(call.items)):
            fails = index % 4 == 0 or target.backend == "us-0"
            yield item_failure(index, retryable=True) if fails else echo(call, index, "eu-0")
        yield Report()

    # The clock stands, as the budget decays with time.
    now = asyncio.get_running_loop().time()
    scene = Scene({"eu-0": every_fourth_fails, "us-0": every_fourth_fails}, clock=lambda: now)

    outcomes = await scene.run(4000)

    statistics = scene.dispatcher.statistics()
    assert len(outcomes.failures()) == 1000
    assert 890 <= statistics.retried <= 910
    assert statistics.denied == 1000 - statistics.retried


async def test_failures_eject_and_time_too_short_to_judge_does_not() -> None:
    failing_scene = Scene({"eu-0": failing(Cause.CUT)}, routing=RoutingConfig(eject_after=1))
    hurried = Scene({"eu-0": steps(Hang())}, routing=RoutingConfig(eject_after=1))

    await failing_scene.run(1)
    await hurried.run(1, within=0.02)

    assert failing_scene.fleet.statistics()[0].ejected_for > 0
    assert hurried.fleet.statistics()[0].ejected_for == 0


async def test_a_backend_is_blamed_when_all_its_items_fail() -> None:
    all_fail = steps(item_failure(0, retryable=True), item_failure(1, retryable=True), Report())
    scene = Scene({"eu-0": all_fail}, routing=RoutingConfig(eject_after=1))

    assert (await scene.run(2)).backends() == ["us-0"] * 2
    assert scene.fleet.statistics()[0].failures == 1


@pytest.mark.parametrize(
    ("code", "is_blamed"),
    [("run_failed", True), ("overloaded", False), ("algorithm_failed", False), (None, True)],
)
async def test_a_backend_is_blamed_for_failures_of_its_own_only(
    code: str | None, *, is_blamed: bool
) -> None:
    failed = [] if code is None else [item_failure(0, retryable=True, code=code)]
    scene = Scene({"eu-0": steps(*failed, Report())}, routing=RoutingConfig(eject_after=1))

    await scene.run(1)

    assert (scene.fleet.statistics()[0].failures == 1) == is_blamed


@pytest.mark.parametrize("cause", [Cause.UNREACHABLE, Cause.CUT])
async def test_items_of_a_lost_backend_are_retried_without_credit(cause: Cause) -> None:
    now = asyncio.get_running_loop().time()
    scene = Scene({"eu-0": failing(cause)}, clock=lambda: now)

    outcomes = await scene.run(1000)

    assert outcomes.backends() == ["us-0"] * 1000
    assert scene.dispatcher.statistics().denied == 0


async def test_the_report_of_a_reply_reaches_the_fleet() -> None:
    async def busy(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        yield echo(call, 0, target.backend)
        yield Report(queued_tokens=123)

    scene = Scene({"eu-0": busy})

    await scene.run(1)

    assert scene.fleet.statistics()[0].report.queued_tokens == 123


async def test_backends_known_to_be_away_are_not_tried_first() -> None:
    scene = Scene()
    scene.fleet.observe(EU, ProbeFailure(detail="refused"))

    assert (await scene.run(1)).backends() == ["us-0"]


class CallSpan(Span):
    """Notes what ended the call."""

    def __init__(self, traceparent: str, seen: list[BaseException | None]) -> None:
        super().__init__(traceparent)
        self._seen = seen

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._seen.append(error)


class CallTracer(Tracer):
    """Records every call."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BaseException | None] = []

    @override
    def records(self, parent: str) -> bool:
        return bool(parent)

    @override
    def span(
        self,
        name: str,
        *,
        parent: str = "",
        kind: str = "internal",
        attributes: Attributes = NO_ATTRIBUTES,
    ) -> Span:
        return CallSpan(f"{parent}>{attributes['sluicegate.backend']}", self.seen)


async def test_each_call_of_a_recorded_request_has_a_span() -> None:
    tracer = CallTracer()
    scene = Scene({"eu-0": failing(Cause.CUT)}, tracer=tracer)

    await scene.run(1, traceparent="root")

    sent = [(item.traceparent, item.scope) for _, call in scene.client.calls for item in call.items]
    assert sent == [("root>eu-0", "tenant-a"), ("root>us-0", "tenant-a")]
    assert [getattr(error, "cause", error) for error in tracer.seen] == [Cause.CUT, None]


async def test_an_error_of_our_own_settles_the_items_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        raise ZeroDivisionError

    scene = Scene({"eu-0": broken})

    await scene.run(2)

    (logged,) = caplog.records
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], ZeroDivisionError)
    assert scene.outcomes.codes() == ["internal_error"] * 2


async def test_statistics_count_calls_and_ends() -> None:
    scene = Scene({"eu-0": failing(Cause.CUT)})

    await scene.run(3)

    found = scene.dispatcher.statistics()
    assert (found.calls, found.failed_calls, found.retried) == (2, 1, 3)
    assert (found.computed, found.failed) == (3, 0)


async def test_work_whose_item_is_refused_and_tried_nowhere_else_is_over() -> None:
    refused = steps(item_failure(0, retryable=True), Report())
    scene = Scene({"eu-0": refused}, endpoints=(EU,))

    async with scene.dispatcher as dispatcher:
        for _ in range(3):
            scene.outcomes = Outcomes()
            settle, deadline = scene.outcomes.settle, scene.loop.time() + 60.0
            await dispatch(dispatcher, work(1), deadline=deadline, settle=settle)
        await until(lambda: not dispatcher.in_progress)


async def test_what_is_begun_after_the_end_is_cancelled() -> None:
    """Who joined work that is cancelled at the end leads it anew at once."""
    scene = Scene({"eu-0": steps(Hang())}, endpoints=(EU,))
    async with scene.dispatcher:
        pass

    deadline, settle = scene.loop.time() + 60.0, scene.outcomes.settle
    Started(work(1), deadline=deadline, settle=settle).start(scene.dispatcher)

    assert scene.outcomes.codes() == ["cancelled"]
    assert scene.dispatcher.in_progress == 0


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("task", "is_measured"), [(Task.EMBED, True), (Task.TOKENIZE, False)])
async def test_what_runs_no_model_does_not_tell_how_busy_a_backend_is(
    task: Task, count: int, *, is_measured: bool
) -> None:
    scene = Scene()

    async with scene.dispatcher:
        await dispatch(
            scene.dispatcher,
            msgspec.structs.replace(work(count), task=task),
            deadline=scene.loop.time() + 60.0,
            settle=scene.outcomes.settle,
        )

    states = scene.fleet._states.values()
    assert any(state.limit.usual for state in states) == is_measured
