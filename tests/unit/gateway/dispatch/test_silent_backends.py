"""Backends that have only just stopped answering probes: who may be sent to them, and who not."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sluicegate.gateway.routing.endpoint_state import ProbeFailure
from sluicegate.gateway.types import Endpoint
from sluicegate.gateway.upstream.base import Cause
from sluicegate.wire.protocol import Call
from testing.waiting import until
from tests.support.dispatch_scene import EU, US, Scene, failing
from tests.support.scripted_client import Step, echo_all

pytestmark = pytest.mark.anyio
LATE = ProbeFailure(detail="late", silence=1.0)


@pytest.mark.parametrize(
    ("cause", "code"),
    [(Cause.UNREACHABLE, ""), (Cause.REFUSED, "not_ready"), (Cause.TIMED_OUT, "")],
)
async def test_what_one_backend_lost_is_tried_at_a_silent_one(cause: Cause, code: str) -> None:
    scene = Scene({"eu-0": failing(cause, status=503, code=code)})
    scene.fleet.observe(US, LATE)

    assert (await scene.run(1)).backends() == ["us-0"]


async def test_what_one_backend_is_too_busy_for_is_not_tried_at_a_silent_one() -> None:
    scene = Scene({"eu-0": failing(Cause.REFUSED, status=503, code="overloaded")})
    scene.fleet.observe(US, LATE)

    outcomes = await scene.run(1)

    assert outcomes.codes() == ["overloaded"]
    assert scene.called() == ["eu-0"]


async def test_work_of_backends_that_fall_silent_one_after_the_other_is_not_doubled() -> None:
    thaw = asyncio.Event()

    async def frozen(target: Endpoint, call: Call) -> AsyncIterator[Step]:
        await thaw.wait()
        async for step in echo_all(target, call):
            yield step

    scene = Scene({"eu-0": frozen, "us-0": frozen})
    running = asyncio.create_task(scene.run(1))
    await until(lambda: scene.called() == ["eu-0"])

    scene.fleet.observe(US, LATE)
    scene.fleet.observe(EU, LATE)
    thaw.set()
    outcomes = await running

    assert outcomes.backends() == ["eu-0"]
    assert scene.called() == ["eu-0"]
