"""A guard keeps what its detectors find when a model fails."""

import msgspec
import pytest

from sluicegate.backends.algorithms.base import ModelAlgorithms
from sluicegate.backends.algorithms.cascade import Cascade
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.guard import Guard
from sluicegate.backends.errors import ModelFailed
from sluicegate.wire.guards import Action, ClassifierDetector
from sluicegate.wire.protocol import GuardParameters, Task
from tests.support.fake_models import FakeModel, asking
from tests.support.inference_scene import INFO

pytestmark = pytest.mark.anyio


class _BrokenModel(FakeModel):
    def __init__(self) -> None:
        super().__init__(self._fail)

    def _fail(self, _: object) -> list[float]:
        raise ModelFailed("broken")


def _guard() -> Guard:
    """Return a guard over a cascade, which is unsure below 0.7."""
    small, large = [Classify(model=name, labels=["ok", "bad"], function="none") for name in "sl"]
    cascade = Cascade(small=small, large=large, threshold=0.7)
    info = msgspec.structs.replace(INFO, name="c")
    return Guard(
        [ModelAlgorithms(info=info, encoder="e", algorithms={Task.CLASSIFY: cascade}, tokens={})]
    )


def _declared(action: Action) -> GuardParameters:
    detector = ClassifierDetector(name="d", model="c", labels={"bad": 0.9}, action=action)
    return GuardParameters(detectors=(detector,))


async def test_a_sure_window_blocks_although_the_large_model_fails() -> None:
    small = FakeModel({"sure": [0.1, 0.9], "unsure": [0.6, 0.4]}.__getitem__)  # type: ignore[arg-type]
    ask = asking(s=small, l=_BrokenModel())

    answer = await _guard().run("unsure|sure", _declared("block"), ask)

    assert answer["verdict"] == "block"
    assert [(one["start"], one["end"]) for one in answer["findings"]] == [(7, 11)]


@pytest.mark.parametrize("text", ["unsure|sure", "unsure"])
async def test_a_failed_window_is_an_error_where_nothing_blocks(text: str) -> None:
    small = FakeModel({"sure": [0.1, 0.9], "unsure": [0.6, 0.4]}.__getitem__)  # type: ignore[arg-type]

    with pytest.raises(ModelFailed):
        await _guard().run(text, _declared("flag"), asking(s=small, l=_BrokenModel()))
