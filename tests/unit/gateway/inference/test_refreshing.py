"""What is refreshed in the background: each item once at a time."""

import asyncio
from types import MappingProxyType

import msgspec
import pytest

from gateway.config.document import Document
from gateway.dispatch.work import Settle, StartedWork, Work
from gateway.dispatch.work_task import WorkTask
from gateway.inference.outcomes import GIVEN_UP
from gateway.inference.prepared_request import PreparedRequest
from gateway.inference.refreshing import Refresher
from gateway.runtime.runtime import Runtime
from gateway.types import InferenceRequest, KeyId, ModelName, Principal, TenantId
from testing.waiting import until
from tests.support.inference_scene import RecordedTasks, Scene
from wire.protocol import ClassifyParameters, Task

pytestmark = pytest.mark.anyio


class FirstAtOnce:
    """A runner that settles the first item of a work at once, and the others when told to."""

    def __init__(self) -> None:
        self.gates: list[asyncio.Event] = []
        self.tasks = RecordedTasks()

    def start(
        self, work: Work, *, deadline: float, settle: Settle, traceparent: str = ""
    ) -> StartedWork:
        """See `WorkRunner`."""
        task = WorkTask(work, settle)
        return task.run(self.tasks, self._run(work, task.settle))

    async def _run(self, work: Work, settle: Settle) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        first, *others = work.items
        settle([(first.index, GIVEN_UP)])
        await gate.wait()
        for item in others:
            settle([(item.index, GIVEN_UP)])


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
    refresher = Refresher(runner=runner, keep=lambda *_: None, is_computed=lambda _: False)
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
