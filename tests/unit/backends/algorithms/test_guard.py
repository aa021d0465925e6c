"""A guard keeps what its detectors find when a model fails or is late."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from sluicegate.backends.algorithms.base import ModelAlgorithms
from sluicegate.backends.algorithms.cascade import Cascade
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.embedding import Embed
from sluicegate.backends.algorithms.guard import Guard
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import DeadlineExceeded, ModelFailed, Overloaded
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.types import FloatArray, Prompt
from sluicegate.wire.guards import (
    Action,
    ClassifierDetector,
    ExampleDetector,
    FormatDetector,
    WordDetector,
)
from sluicegate.wire.protocol import MAX_ENTITIES, GuardParameters, Task
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


class _SilentModel(FakeModel):
    """Never answers."""

    @override
    async def vectors(
        self, texts: Sequence[Any], caller: RowCaller, prompts: Sequence[Prompt] | None = None
    ) -> FloatArray:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("text", ["a film", "a book"])
async def test_a_late_detector_fails_and_hides_no_block(text: str) -> None:
    """The second item waits for the examples that the first one computes."""
    embed = Embed(model="m", dimensions=2)
    info = msgspec.structs.replace(INFO, name="m")
    guard = Guard(
        [ModelAlgorithms(info=info, encoder="m", algorithms={Task.EMBED: embed}, tokens={})]
    )
    words = WordDetector(name="w", words=("film",))
    similar = ExampleDetector(name="e", model="m", examples={"a": ("b",)}, threshold=0.5)
    parameters = GuardParameters(detectors=(similar, words))
    caller = RowCaller(scope="tenant", deadline=time.monotonic())
    models = {"m": _SilentModel(lambda _: [])}

    found = await asyncio.gather(
        *[guard.run(text, parameters, AlgorithmContext(models, caller)) for _ in range(2)],
        return_exceptions=True,
    )

    assert caller.is_partial is (text == "a film")
    for one in found:
        if text == "a film":
            assert isinstance(one, dict)
            assert (one["verdict"], one["error"]["code"]) == ("block", "deadline_exceeded")
        else:
            assert isinstance(one, DeadlineExceeded)


@pytest.mark.parametrize(
    ("text", "slow"),
    [
        ("7", WordDetector(name="w", words=tuple(map(str, range(200))))),
        # A detector takes 3 ms for these 1,000 characters, and a guard may have 64 detectors.
        ("1::2::3 " * 125, FormatDetector(name="f", formats=("ip_address",))),
    ],
)
async def test_late_words_hide_no_block(text: str, slow: WordDetector | FormatDetector) -> None:
    """The thread that looks for them is busy with other texts."""
    bad = Classify(model="m", labels=["ok", "bad"], function="none")
    info = msgspec.structs.replace(INFO, name="m")
    guard = Guard(
        [ModelAlgorithms(info=info, encoder="m", algorithms={Task.CLASSIFY: bad}, tokens={})]
    )
    found_by_model = ClassifierDetector(name="c", model="m", labels={"bad": 0.9})
    caller = RowCaller(scope="tenant", deadline=time.monotonic() + 0.2)
    ask = AlgorithmContext({"m": FakeModel(lambda _: [0.1, 0.9])}, caller)
    is_over = threading.Event()

    async def run() -> Any:
        try:
            return await guard.run(text, GuardParameters(detectors=(slow, found_by_model)), ask)
        finally:
            is_over.set()

    _, answer = await asyncio.gather(run_token_work(1000, is_over.wait), run())

    assert (answer["verdict"], answer["error"]["code"]) == ("block", "deadline_exceeded")
    assert [one["detector"] for one in answer["findings"]] == ["c"]
    assert caller.is_partial


async def test_what_two_readings_have_in_common_is_counted_once() -> None:
    model = Classify(model="m", labels=["ok", "bad"], function="none")
    info = msgspec.structs.replace(INFO, name="m")
    guard = Guard(
        [ModelAlgorithms(info=info, encoder="m", algorithms={Task.CLASSIFY: model}, tokens={})]
    )
    detector = ClassifierDetector(name="c", model="m", labels={"bad": 0.9}, action="flag")
    windows = MAX_ENTITIES // 2 + 1
    text = "|".join(["a"] * (windows - 1)) + "|b\u200bc"

    answer = await guard.run(
        text, GuardParameters(detectors=(detector,)), asking(m=FakeModel(lambda _: [0.1, 0.9]))
    )

    assert len(answer["findings"]) == windows


class _FullModel(FakeModel):
    def __init__(self) -> None:
        super().__init__(self._fail)

    def _fail(self, _: object) -> list[float]:
        raise Overloaded("full", retry_after=1.0)


async def test_heads_do_not_wait_in_turn_for_room_in_one_queue() -> None:
    full, other = _FullModel(), FakeModel(lambda _: [0.1, 0.9])
    heads = [Classify(model=name, labels=["ok", "bad"], function="none") for name in "abc"]
    guard = Guard(
        [
            ModelAlgorithms(
                info=msgspec.structs.replace(INFO, name=head.model),
                encoder="other" if head.model == "c" else "full",
                algorithms={Task.CLASSIFY: head},
                tokens={},
            )
            for head in heads
        ]
    )
    detectors = [ClassifierDetector(name=n, model=n, labels={"bad": 0.9}) for n in "abc"]

    answer = await guard.run(
        "a film", GuardParameters(detectors=tuple(detectors)), asking(a=full, b=full, c=other)
    )

    assert full.rows == 1
    assert (answer["verdict"], answer["error"]["code"]) == ("block", "overloaded")
    assert [one["detector"] for one in answer["findings"]] == ["c"]


class _BuggyModel(FakeModel):
    def __init__(self, bug: type[Exception]) -> None:
        super().__init__(self._fail)
        self._bug = bug

    def _fail(self, _: object) -> list[float]:
        raise self._bug


async def test_each_unexpected_error_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    models = [Classify(model=name, labels=["ok", "bad"], function="none") for name in "ab"]
    guard = Guard(
        [
            ModelAlgorithms(
                info=msgspec.structs.replace(INFO, name=model.model),
                encoder=model.model,
                algorithms={Task.CLASSIFY: model},
                tokens={},
            )
            for model in models
        ]
    )
    detectors = [ClassifierDetector(name=n, model=n, labels={"bad": 0.9}) for n in "ab"]
    words = WordDetector(name="w", words=("film",))
    bugs: Any = {"a": _BuggyModel(KeyError), "b": _BuggyModel(ZeroDivisionError)}

    answer = await guard.run(
        "a film", GuardParameters(detectors=(*detectors, words)), asking(**bugs)
    )

    assert answer["error"]["code"] == "internal_error"
    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert errors == [KeyError, ZeroDivisionError]
