"""What is refreshed in the background: each item once at a time."""

import asyncio
from collections.abc import Sequence
from types import MappingProxyType

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.dispatch.work import OpenItem, settle
from sluicegate.gateway.inference.last_answers import Refresher
from sluicegate.gateway.inference.outcomes import GIVEN_UP
from sluicegate.gateway.inference.prepared_request import PreparedRequest
from sluicegate.gateway.runtime.runtime import Runtime
from sluicegate.gateway.types import InferenceRequest, KeyId, ModelName, Principal, TenantId
from sluicegate.wire.protocol import ClassifyParameters, Task
from testing.waiting import until
from tests.support.inference_scene import GatedRunner, Scene

pytestmark = pytest.mark.anyio


class FirstAtOnce(GatedRunner):
    """Settles the first item at once, and the others when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    @override
    async def _run(self, items: Sequence[OpenItem]) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        settle([(items[0], GIVEN_UP)])
        await gate.wait()
        settle([(item, GIVEN_UP) for item in items])


class Nobody:
    """An owner that stores nothing."""

    def items_ended(self, items: Sequence[OpenItem]) -> None:
        """See `ItemOwner`."""


def job_of(scene: Scene, *texts: str) -> PreparedRequest:
    request = InferenceRequest(
        task=Task.CLASSIFY,
        model=ModelName("sentiment"),
        parameters=msgspec.msgpack.encode(ClassifyParameters()),
        items=tuple(text.encode() for text in texts),
    )
    runtime = Runtime(generation=1, document=Document(), endpoints=(), epochs=MappingProxyType({}))
    principal = Principal(tenant=TenantId("t1"), key=KeyId("k"))
    return scene.inference.prepare(request, principal, runtime)


async def test_the_end_of_a_refresh_does_not_end_the_next_one_of_an_item() -> None:
    runner = FirstAtOnce()
    tasks = runner.tasks
    refresher = Refresher(runner=runner, owner=Nobody(), is_computed=lambda _: False)
    prepared = job_of(Scene(), "a", "b", "c")

    refresher.refresh(prepared, [0, 1])
    await until(lambda: len(runner.gates) == 1)
    refresher.refresh(prepared, [2, 0])
    await until(lambda: len(runner.gates) == 2)
    runner.gates[0].set()
    await tasks.tasks[0]
    refresher.refresh(prepared, [0])
    await asyncio.sleep(0)
    in_flight = len(refresher)
    for gate in runner.gates:
        gate.set()
    await asyncio.gather(*tasks.tasks)

    assert (in_flight, refresher.begun) == (1, 4)
    assert len(refresher) == 0
