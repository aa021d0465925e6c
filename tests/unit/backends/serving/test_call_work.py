"""What is reserved for the items of a call, for whom, and what late ones teach."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from itertools import islice

import numpy as np
import pytest

from sluicegate.backends.batching.batcher import Batcher
from sluicegate.backends.batching.coalescing import RowCache, RowCaller, RowCoalescer
from sluicegate.backends.errors import Overloaded
from sluicegate.backends.executors.cost import CostModel
from sluicegate.backends.serving.call_work import CallWork
from sluicegate.backends.serving.work_estimates import WorkEstimates
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, OutputKind
from sluicegate.wire.protocol import Call, CallItem, ModelInfo, Task
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.executors import DummyExecutor

_MODEL = ModelInfo(
    name="mood",
    revision="1",
    profile="fp32",
    tasks=[Task.CLASSIFY],
    algorithm="head",
    algorithm_version=1,
    max_tokens=32,
)


def item(scope: str, *, tokens: int = 1, remaining: float = 600.0) -> CallItem:
    """Return an item that is expected to have so many tokens."""
    return CallItem(body=bytes(6 * tokens - 5), remaining=remaining, scope=scope)


class Scene:
    """An idle model whose rows of one token take a second."""

    def __init__(self) -> None:
        executor = DummyExecutor()
        executor.cost = CostModel(base=0.0, padded=1.0, square=0.0)
        self.batcher = Batcher(
            name="mood",
            executor=executor,
            settings=BackendSettings(max_queue_rows=64),
            clock=Clock(),
            tracing=NO_TRACING,
        )
        self.estimates = WorkEstimates()
        self.portions = 0
        """How many chunks of text the tokenizer has read."""

    def work(self, *items: CallItem, atomic: bool = False, task: Task = Task.CLASSIFY) -> CallWork:
        """Return the admitted work of a call."""
        call = Call(
            model="mood",
            revision="1",
            profile="fp32",
            task=task,
            parameters=b"\x80",
            items=list(items),
            atomic=atomic,
        )
        work = CallWork(
            call,
            _MODEL,
            estimates=self.estimates,
            batcher=self.batcher,
            portions=lambda: self.portions,
        )
        work.admit()
        return work

    def begin(self, *items: CallItem, atomic: bool = False) -> CallWork:
        """Return the work of a call whose items have begun."""
        work = self.work(*items, atomic=atomic)
        for index, each in enumerate(items):
            work.reservation(index, each, time_left=each.remaining)
        return work

    def wait_of(self, scope: str) -> float:
        """Return how much too late an item without any time would be."""
        with pytest.raises(Overloaded) as refused:
            self.work(item(scope, remaining=0.0))
        return refused.value.retry_after or 0.0


@asynccontextmanager
async def waiting_rows(scene: Scene, *items: CallItem, each: int) -> AsyncIterator[None]:
    """Let so many rows of one token wait for each item."""
    rows = RowCoalescer(digest="d", cache=RowCache(max_bytes=10**6), batcher=scene.batcher)
    numbers = iter(range(256))
    asking = []
    for one in items:
        encodings = [
            Encoding(ids=np.array([n], dtype=np.int32), type_ids=None, key=bytes([n]))
            for n in islice(numbers, each)
        ]
        caller = RowCaller(scope=one.scope, deadline=1e9)
        asking.append(
            asyncio.create_task(rows.ask(encodings, kind=OutputKind.POOLED, caller=caller))
        )
    await until(lambda: scene.batcher.submissions.queue.rows == each * len(items))
    yield
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


def test_an_item_is_reserved_for_its_own_tenant() -> None:
    scene = Scene()
    scene.begin(item("quiet"), *[item("busy")] * 8)

    waits = [scene.wait_of(scope) for scope in ("quiet", "busy")]

    # A second item of `quiet` shares the device with two items of `busy`.
    assert waits[0] / waits[1] == pytest.approx(4 / 10)


@pytest.mark.parametrize(
    ("items", "rows", "counted"),
    [(4, 0, 4), (4, 1, 4), (4, 6, 6), (4, 99, 8), (1, 0, 0), (1, 1, 1)],
)
def test_a_late_request_is_learned_from_once(items: int, rows: int, counted: int) -> None:
    scene = Scene()
    scene.begin(item("other"))
    before = scene.wait_of("other")
    late = scene.begin(*[item("tenant")] * items, atomic=True)

    for index in range(items):
        late.end(index, brought=1.0, is_done=False, late_rows=rows)

    assert scene.wait_of("other") / before == pytest.approx(1 + 0.02 * 0.995 * counted)


@pytest.mark.parametrize("ended", [0, 1, 4])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_call_that_is_over_has_nothing_reserved(*, ended: int, atomic: bool) -> None:
    scene = Scene()
    work = scene.begin(*map(item, "abcd"), atomic=atomic)

    for index in range(ended):
        work.end(index, brought=1.0, is_done=True, late_rows=None)
    work.close()

    scene.work(item("a", remaining=0.0))


def test_an_item_that_ended_has_nothing_reserved_in_its_call() -> None:
    scene = Scene()
    work = scene.begin(item("a"), item("b"))
    before = scene.wait_of("a")

    work.end(1, brought=1.0, is_done=True, late_rows=None)

    assert scene.wait_of("a") / before == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("items", "is_admitted"),
    [
        ([item("a", remaining=0.0), item("a")], True),
        ([item("a", remaining=20.0), item("a", tokens=32, remaining=20.0)], True),
        ([item("a", remaining=0.0), item("a", remaining=2.0)], False),
    ],
    ids=["one has time", "one is small", "neither"],
)
def test_requests_in_one_call_are_refused_with_the_last_of_them(
    items: list[CallItem], *, is_admitted: bool
) -> None:
    scene = Scene()
    scene.begin(item("other"))

    with nullcontext() if is_admitted else pytest.raises(Overloaded):
        scene.work(*items)


@pytest.mark.anyio
@pytest.mark.parametrize("remaining", [20.0, 600.0])
async def test_a_tenant_is_not_refused_for_the_rows_of_others(remaining: float) -> None:
    """With little time it would be late behind them, and with much time the queue has no room."""
    scene = Scene()
    busy = [item(scope, remaining=remaining) for scope in "abcd"]
    async with waiting_rows(scene, *busy, each=14):
        scene.work(*busy, item("quiet", remaining=remaining))
        with pytest.raises(Overloaded):
            scene.work(*busy)


@pytest.mark.anyio
@pytest.mark.parametrize("waiting", [0, 1])
async def test_reading_is_progress_only_while_nothing_waits_for_the_device(waiting: int) -> None:
    scene = Scene()
    async with waiting_rows(scene, item("other"), each=waiting):
        work = scene.work(item("a"))

        scene.portions += 1

        assert [work.has_progressed(), work.has_progressed()] == [not waiting, False]


def test_rows_of_another_model_take_nothing_of_what_is_reserved() -> None:
    scene, other = Scene(), Scene()
    work = scene.begin(item("a"), item("a"))
    before = scene.wait_of("a")
    other.begin(item("b"))
    reservation = work.reservation(0, item("a"), time_left=600.0)

    with pytest.raises(Overloaded):
        other.batcher.admission.take(
            1.0, deadline=0.0, flow=("interactive", "a"), reservation=reservation
        )

    assert scene.wait_of("a") >= before


def test_rows_beyond_what_is_reserved_take_nothing_of_other_items() -> None:
    scene = Scene()
    flow = ("interactive", "a")
    (first,) = scene.batcher.admission.admit([1.0], time_left=600.0, flow=flow)
    scene.begin(item("a"))

    scene.batcher.admission.take(3.0, deadline=1e9, flow=flow, reservation=first)

    assert scene.wait_of("a") == pytest.approx(2 * 1.4)


@pytest.mark.parametrize("count", [1, 3])
def test_every_item_that_is_refused_is_counted(count: int) -> None:
    scene = Scene()
    scene.begin(item("other"))

    with pytest.raises(Overloaded):
        scene.work(*[item("a", remaining=0.0)] * count, atomic=True)
    late = scene.work(*[item("a")] * 2)
    with pytest.raises(Overloaded):
        late.reservation(0, item("a"), time_left=0.0)

    assert scene.batcher.statistics().refused_rows == count + 1


@pytest.mark.parametrize("count", [1, 2])
def test_what_runs_no_model_is_never_refused(count: int) -> None:
    scene = Scene()
    scene.begin(item("other"))
    items = [item("a", remaining=0.0)] * count

    work = scene.work(*items, task=Task.TOKENIZE)

    assert work.reservation(0, items[0], time_left=0.0) is None


@pytest.mark.parametrize("atomic", [True, False])
def test_as_much_is_reserved_as_like_items_took(*, atomic: bool) -> None:
    scene = Scene()
    scene.begin(item("a")).end(0, brought=4.0, is_done=True, late_rows=None)

    scene.begin(item("a"), item("a"), atomic=atomic)

    assert scene.wait_of("a") == pytest.approx((2 + 1) * 4 * 1.4)
