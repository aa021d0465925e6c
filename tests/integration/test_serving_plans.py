"""A backend follows operators' plans in place of its folders, and checks them without serving."""

import shutil
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from sluicegate.wire.plans import PlanTrial, Serving, ServingPlans, Shadow
from sluicegate.wire.protocol import CHECK_PATH, RELOAD_PATH, Done, Failed, PlanVerdict, Task
from testing.model_repository import DIMENSIONS, write_head, write_model, write_repository
from testing.waiting import until
from tests.support.backend_calls import AsgiExchange, Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
TEXTS = [f"good film {number}" for number in range(60)]
HALVES = Serving(revisions={"1": 1, "2": 1})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository whose `mood` has two revisions, of which its folder names the first."""
    root = write_repository(tmp_path / "models")
    (root / "mood" / "1").rename(root / "mood" / "kept")
    write_head(root, "mood", ["calm", "angry"]).rename(root / "mood" / "2")
    (root / "mood" / "kept").rename(root / "mood" / "1")
    (root / "mood" / "serving.yaml").write_text("revisions: {1: 1}\n")
    shutil.rmtree(root / "reviewer")  # it builds on `mood`
    return root


def executor() -> DummyExecutor:
    return DummyExecutor(dimensions=DIMENSIONS, worker_threads=1)


async def post(backend: Backend, path: str, message: object) -> AsgiExchange:
    return await AsgiExchange(backend.routes, "POST", path, msgspec.msgpack.encode(message)).run()


async def follow(backend: Backend, version: int, **plans: Serving) -> None:
    exchange = await post(backend, RELOAD_PATH, ServingPlans(version=version, plans=plans))
    assert exchange.status == 200


async def check(backend: Backend, plan: Serving | None, model: str = "mood") -> PlanVerdict:
    exchange = await post(backend, CHECK_PATH, PlanTrial(model=model, plan=plan))
    assert exchange.status == 200
    return msgspec.msgpack.decode(exchange.body, type=PlanVerdict)


async def arms(backend: Backend) -> Counter[str]:
    outcomes = await backend.ask("mood", Task.CLASSIFY, TEXTS)
    return Counter(outcome.arm for outcome in outcomes if isinstance(outcome, Done))


async def test_a_plan_comes_before_the_folder_until_there_is_none(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        revision = backend.info("mood").revision
        before = await arms(backend)
        await follow(backend, 7, mood=HALVES)
        shared = await arms(backend)
        state = backend.engine.state()
        await follow(backend, 8)

        assert before == {"": len(TEXTS)}
        assert shared.keys() == {"1", "2"}
        assert (state.plans, backend.engine.state().plans) == (7, 8)
        assert backend.info("mood").revision == revision


async def test_older_plans_than_those_that_are_followed_change_nothing(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        await follow(backend, 7, mood=HALVES)
        await follow(backend, 6)
        await backend.reload()

        assert backend.engine.state().plans == 7
        assert (await arms(backend)).keys() == {"1", "2"}


async def test_the_shares_do_not_depend_on_the_order_of_the_plan(models: Path) -> None:
    found = []
    for revisions in ({"1": 3, "2": 1}, {"2": 1, "1": 3}):
        async with running_backend(models, executor()) as backend:
            await follow(backend, 1, mood=Serving(revisions=revisions))
            outcomes = await backend.ask("mood", Task.CLASSIFY, TEXTS)
            answers = [outcome.arm for outcome in outcomes if isinstance(outcome, Done)]
            found.append((backend.info("mood").revision, answers))

    assert found[0] == found[1]


async def test_a_check_says_what_would_be_served_and_changes_nothing(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        before = backend.engine.state().models
        verdict = await check(backend, HALVES)

        assert verdict.problems == {}
        assert {info.name: info.labels for info in verdict.models} == {
            "mood": ["negative", "positive"],
            "mood@1": ["negative", "positive"],
            "mood@2": ["calm", "angry"],
        }
        assert backend.engine.state().models == before
        assert len(backend.engine.running()) == 1


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            Serving(revisions={"7": 1}),
            "the operators' plan of `mood`: there is no revision `7`; choose from `1`, `2`, `3`",
        ),
        (Serving(shadow=Shadow(revision="9")), "there is no revision `9`"),
        (Serving(revisions={"1": 1, "3": 1}), "it builds on `mood@3`, which is broken"),
    ],
)
async def test_a_check_names_what_would_be_broken(
    models: Path, plan: Serving, message: str
) -> None:
    shutil.copytree(models / "mood" / "2", models / "mood" / "3")
    (models / "mood" / "3" / "head.npz").write_bytes(b"no head")
    async with running_backend(models, executor()) as backend:
        verdict = await check(backend, plan)

        assert message in verdict.problems["mood"]
        assert backend.engine.state().problems == {}


async def test_a_check_names_what_could_not_build_on_the_model_any_more(models: Path) -> None:
    write_model(
        models,
        "moods",
        {"kind": "algorithm", "algorithm": "ensemble", "uses": ["mood"], "tasks": ["classify"]},
    )
    async with running_backend(models, executor()) as backend:
        verdict = await check(backend, HALVES)

        assert "it cannot build on `mood`" in verdict.problems["moods"]


async def test_a_check_of_a_model_that_is_not_there_says_nothing(models: Path) -> None:
    async with running_backend(models, executor()) as backend:
        assert await check(backend, None, model="other") == PlanVerdict()


@pytest.mark.parametrize("path", [RELOAD_PATH, CHECK_PATH])
async def test_plans_that_cannot_be_read_are_refused(models: Path, path: str) -> None:
    async with running_backend(models, executor()) as backend:
        exchange = await post(backend, path, {"version": "seven", "model": 7})

        assert exchange.status == 400


async def test_arms_are_counted_with_latency_labels_and_the_shadow(models: Path) -> None:
    (models / "mood" / "2").rename(models / "mood" / "3")
    async with running_backend(models, executor()) as backend:
        await follow(backend, 1, mood=Serving(revisions={"1": 1}, shadow=Shadow(revision="3")))
        found = await backend.ask("mood", Task.CLASSIFY, ["good", ""])
        state = backend.engine.state
        await until(lambda: state().arms[0].shadows == {"3": {"changed": 1}}, what="a comparison")
        metrics = (await backend.get("/metrics")).body.decode()

    done, failed = found
    assert isinstance(done, Done)
    assert isinstance(failed, Failed)
    assert (done.arm, done.shadow, failed.arm) == ("1", "3", "1")
    (arm,) = state().arms
    assert (arm.model, arm.arm, arm.outcomes) == ("mood", "1", {"done": 1, "refused": 1})
    assert sum(arm.labels.values()) == 1
    assert sum(arm.durations.values()) == 2
    assert (
        'sluicegate_backend_arm_items_total{arm="1",model="mood",outcome="refused"} 1.0' in metrics
    )
    assert 'sluicegate_backend_arm_duration_seconds_count{arm="1",model="mood"} 2.0' in metrics
    assert 'sluicegate_backend_arm_labels_total{arm="1",label=' in metrics


async def test_the_arm_of_a_model_below_is_not_named_as_that_of_the_model(models: Path) -> None:
    manifest = {"kind": "algorithm", "algorithm": "custom", "code": "judge.py"}
    folder = write_model(models, "judge", manifest | {"uses": ["mood"], "tasks": ["infer"]})
    (folder / "judge.py").write_text(
        "async def run(item, ask):\n    return await ask.answer('mood', item)\n"
    )
    async with running_backend(models, executor()) as backend:
        await follow(backend, 1, mood=HALVES)
        outcomes = await backend.ask("judge", Task.INFER, TEXTS)

    assert [outcome.arm for outcome in outcomes] == [""] * len(TEXTS)
    assert all(isinstance(outcome, Done) for outcome in outcomes)
