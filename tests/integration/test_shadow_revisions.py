"""A shadow revision sees a share of the items: compared and counted, and never in an answer."""

import asyncio
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.algorithms.shadow import Mirror, MirroringAlgorithm
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.plans import Shadow
from sluicegate.wire.protocol import Done, Task
from testing.model_repository import DIMENSIONS, write_head, write_repository
from testing.waiting import until
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
TEXTS = [f"good film {number}" for number in range(40)]
NAMES = ("mood", "mood@2")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository whose `mood` has a second revision with other labels."""
    root = write_repository(tmp_path / "models")
    (root / "mood" / "1").rename(root / "mood" / "kept")
    write_head(root, "mood", ["calm", "angry"]).rename(root / "mood" / "2")
    (root / "mood" / "kept").rename(root / "mood" / "1")
    serve(root, "revisions: {1: 1}\nshadow: {revision: 2}\n")
    return root


def serve(models: Path, text: str) -> None:
    (models / "mood" / "serving.yaml").write_text(text)


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


def outcomes(backend: Backend) -> dict[str, int]:
    """Return how mirrored items compared."""
    counted = backend.engine.snapshot().shadows.outcomes
    return {outcome: count for (*_, outcome), count in counted.items()}


async def test_the_shadow_is_compared_and_counted_and_answers_nobody(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        answer = await backend.answer("mood", Task.CLASSIFY, "good film")
        await until(lambda: outcomes(backend) == {"changed": 1})
        metrics = (await backend.get("/metrics")).body.decode()

    assert {label["label"] for label in answer["labels"]} == {"negative", "positive"}
    labels = 'arm="1",model="mood",outcome="changed",shadow="mood@2"'
    assert f"sluicegate_backend_shadow_items_total{{{labels}}} 1.0" in metrics


async def test_a_shadow_that_answers_alike_is_counted_as_the_same(models: Path) -> None:
    shutil.rmtree(models / "mood" / "2")
    shutil.copytree(models / "mood" / "1", models / "mood" / "2")
    async with running_backend(models, executor()) as backend:
        await backend.answer("mood", Task.CLASSIFY, "good film")
        await until(lambda: outcomes(backend) == {"same": 1})

        assert backend.engine.snapshot().shadows.largest == {("mood", "1", "mood@2"): 0.0}


async def test_rows_of_the_shadow_are_counted_to_nobody(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        first, again = [
            (await backend.ask("mood", Task.CLASSIFY, ["good film"]))[0] for _ in range(2)
        ]

    assert isinstance(first, Done)
    assert isinstance(again, Done)
    assert (first.rows, first.known) == (1, 0)
    assert (again.rows, again.known) == (0, 1)


async def test_a_broken_shadow_is_named_and_the_model_answers(models: Path) -> None:
    (models / "mood" / "2" / "head.npz").unlink()
    async with running_backend(models, executor()) as backend:
        await backend.answer("mood", Task.CLASSIFY, "good film")

        assert any(line.startswith("mood@2: ") for line in backend.engine.state().missing)
        assert outcomes(backend) == {}


async def test_a_shadow_without_the_task_is_named(models: Path) -> None:
    shutil.rmtree(models / "mood" / "2")
    names = write_head(models, "other", ["O", "B-PER"], task="entities", output="tokens")
    names.rename(models / "mood" / "2")
    async with running_backend(models, executor()) as backend:
        await backend.answer("mood", Task.CLASSIFY, "good film")

        message = "mood@2: it is the shadow of `mood`"
        assert any(problem.startswith(message) for problem in backend.engine.state().missing)


async def test_a_shadow_comes_and_goes_while_serving_and_changes_no_revision(models: Path) -> None:
    revision = read_catalogue(models).models["mood"].revision
    async with running_backend(models, executor()) as backend:
        serve(models, "revisions: {1: 1}\n")
        await backend.reload()
        await backend.answer("mood", Task.CLASSIFY, "good film")

        assert backend.info("mood").revision == revision
        assert outcomes(backend) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shadow: {revision: 7}", "there is no revision `7`"),
        ("shadow: {revision: 2}", "the `shadow` is revision `2`"),
        ("revisions: {1: 1}\nshadow: {revision: 2, share: 0}", "$.shadow.share"),
        ("revisions: {1: 1}\nshadow: {share: 5}", "revision"),
    ],
)
def test_a_wrong_shadow_stops_its_model_alone(models: Path, text: str, message: str) -> None:
    serve(models, text)

    problems = read_catalogue(models).problems

    assert message in problems["mood"]
    assert set(problems) == {"mood", "reviewer"}


class Told(Algorithm):
    """Answers what it is told to, once it may."""

    def __init__(self, answer: Any, *, may: asyncio.Event | None = None) -> None:
        self._answer = answer
        self._may = may
        self.items: list[Any] = []

    @override
    async def run(self, item: Any, parameters: Any, ask: AlgorithmContext) -> Any:
        self.items.append(item)
        if self._may is not None:
            await self._may.wait()
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def mirrored(
    mirror: Mirror, shadow: Algorithm, answer: Any = "yes", *, share: float = 100.0
) -> MirroringAlgorithm:
    plan = Shadow(revision="2", share=share)
    return MirroringAlgorithm(
        below=Told(answer), shadow=shadow, names=NAMES, plan=plan, mirror=mirror
    )


def make_mirror(*, busy: float = 0.0, **limits: Any) -> Mirror:
    return Mirror(clock=lambda: 0.0, busy_share=lambda: busy, **limits)


def ask() -> AlgorithmContext:
    return AlgorithmContext({}, RowCaller(scope="tenant", deadline=math.inf))


def counted(mirror: Mirror) -> Mapping[str, int]:
    return {outcome: count for (*_, outcome), count in mirror.statistics().outcomes.items()}


async def test_a_shadow_that_hangs_delays_nobody_and_is_bounded() -> None:
    mirror = make_mirror()
    shadow = Told("yes", may=asyncio.Event())
    model = mirrored(mirror, shadow)

    async with asyncio.timeout(60.0):
        answers = [await model.run(text, None, ask()) for text in TEXTS]
    await until(lambda: len(shadow.items) >= 8, what="mirrored")

    assert answers == ["yes"] * len(TEXTS)
    assert len(shadow.items) == 8
    assert counted(mirror) == {"skipped": len(TEXTS) - 8}
    await mirror.close()


async def test_a_share_of_the_items_is_mirrored_and_always_the_same_ones() -> None:
    seen = []
    for _ in range(2):
        mirror = make_mirror(most=len(TEXTS))
        shadow = Told("yes")
        model = mirrored(mirror, shadow, share=25)
        for text in TEXTS:
            await model.run(text, None, ask())
        await asyncio.sleep(0)  # tasks run in the order they were made: each has ended then
        seen.append(shadow.items)

    assert seen[0] == seen[1]
    assert 3 <= len(seen[0]) <= 20


async def test_a_busy_device_mirrors_nothing() -> None:
    mirror = make_mirror(busy=0.9)
    shadow = Told("yes")

    assert await mirrored(mirror, shadow).run("text", None, ask()) == "yes"

    assert shadow.items == []
    assert counted(mirror) == {"skipped": 1}


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        (ModelFailed("no"), "failed"),
        (ZeroDivisionError(), "failed"),
        ({"labels": [{"label": "b", "score": 0.9}, {"label": "a", "score": 0.1}]}, "changed"),
        ({"labels": [{"label": "a", "score": 0.605}, {"label": "b", "score": 0.395}]}, "same"),
        ({"labels": [{"label": "a", "score": 0.7}, {"label": "b", "score": 0.3}]}, "moved"),
        ({"labels": [{"label": "a", "score": 0.6}]}, "changed"),
        ({"embedding": [0.5]}, "changed"),
    ],
)
async def test_answers_are_compared_by_what_they_say(other: Any, outcome: str) -> None:
    mirror = make_mirror()
    answer = {"labels": [{"label": "a", "score": 0.6}, {"label": "b", "score": 0.4}]}

    await mirrored(mirror, Told(other), answer).run("text", None, ask())

    await until(lambda: counted(mirror) == {outcome: 1})


async def test_a_shadow_that_takes_too_long_is_called_off() -> None:
    mirror = make_mirror(timeout=0.01)

    await mirrored(mirror, Told("yes", may=asyncio.Event())).run("text", None, ask())

    await until(lambda: counted(mirror) == {"failed": 1})
