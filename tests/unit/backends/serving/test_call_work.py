"""What is reserved for the items of a call, for whom, and what late ones teach."""

import pytest

from backends.batching.batcher import Batcher, BatchingOptions
from backends.errors import Overloaded
from backends.executors.cost import CostModel
from backends.executors.dummy import DummyExecutor
from backends.serving.call_work import CallWork
from backends.serving.work_estimates import WorkEstimates
from backends.telemetry.spans import NO_TRACING
from tests.support.clock import Clock
from wire.protocol import Call, CallItem, ModelInfo, Task

_MODEL = ModelInfo(
    name="mood",
    revision="1",
    profile="fp32",
    tasks=[Task.CLASSIFY],
    algorithm="head",
    algorithm_version=1,
    max_tokens=32,
)


class Scene:
    """An idle model whose rows of one token take a second."""

    def __init__(self) -> None:
        executor = DummyExecutor()
        executor.cost = CostModel(base=0.0, padded=1.0, square=0.0)
        self.batcher = Batcher(
            name="mood",
            executor=executor,
            options=BatchingOptions(),
            clock=Clock(),
            tracing=NO_TRACING,
        )
        self.estimates = WorkEstimates()

    def work(self, *scopes: str, remaining: float = 600.0, atomic: bool = False) -> CallWork:
        """Return the admitted work of a call with an item of one token for each scope."""
        call = Call(
            model="mood",
            revision="1",
            profile="fp32",
            task=Task.CLASSIFY,
            parameters=b"\x80",
            items=[CallItem(body=b"\x80", remaining=remaining, scope=scope) for scope in scopes],
            atomic=atomic,
        )
        work = CallWork(
            call,
            _MODEL,
            estimates=self.estimates,
            batcher=self.batcher,
            portions=lambda: 0,
        )
        work.admit()
        return work


def begin(work: CallWork, *scopes: str) -> None:
    """Begin the items of a call."""
    for index, scope in enumerate(scopes):
        item = CallItem(body=b"\x80", remaining=600.0, scope=scope)
        work.reservation(index, item, time_left=600.0)


def wait_of(scene: Scene, scope: str) -> float:
    """Return how much too late an item without any time would be."""
    with pytest.raises(Overloaded) as refused:
        scene.work(scope, remaining=0.0)
    return refused.value.retry_after or 0.0


def test_an_item_is_reserved_for_its_own_tenant() -> None:
    scopes = ("quiet", *["busy"] * 8)
    scene = Scene()
    begin(scene.work(*scopes), *scopes)

    waits = [wait_of(scene, scope) for scope in ("quiet", "busy")]

    # A second item of `quiet` shares the device with two items of `busy`.
    assert waits[0] / waits[1] == pytest.approx(4 / 10)


@pytest.mark.parametrize(("rows", "counted"), [(0, 4), (1, 4), (6, 6), (99, 8)])
def test_a_late_request_is_learned_from_once(rows: int, counted: int) -> None:
    scene = Scene()
    begin(scene.work("other"), "other")
    before = wait_of(scene, "other")
    late = scene.work(*["tenant"] * 4, atomic=True)
    begin(late, *["tenant"] * 4)

    for index in range(4):
        late.end(index, brought=1.0, is_done=False, late_rows=rows)

    assert wait_of(scene, "other") / before == pytest.approx(1 + 0.02 * 0.995 * counted)


@pytest.mark.parametrize("ended", [0, 1, 4])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_call_that_is_over_has_nothing_reserved(*, ended: int, atomic: bool) -> None:
    scopes = ("a", "b", "c", "d")
    scene = Scene()
    work = scene.work(*scopes, atomic=atomic)
    begin(work, *scopes)

    for index in range(ended):
        work.end(index, brought=1.0, is_done=True, late_rows=None)
    work.close()

    scene.work("a", remaining=0.0)
