"""Items are answered from the cache, joined, or computed and stored."""

import asyncio
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace
from typing_extensions import override

from sluicegate.gateway.errors import (
    ModelNotFound,
    NotCached,
    TaskNotSupported,
    UpstreamUnavailable,
)
from sluicegate.gateway.types import (
    CacheDirectives,
    Criticality,
    ItemFailure,
    ItemOutcome,
    KeyId,
    Source,
)
from sluicegate.wire.protocol import Task
from testing.waiting import until
from tests.support.inference_scene import INFO, FailsOnce, GatedRunner, Scene, sources

pytestmark = pytest.mark.anyio
_HIT, _COMPUTED, _COLLAPSED = Source.HIT, Source.COMPUTED, Source.COLLAPSED
_FAILED = Source.FAILED


@pytest.fixture
async def scene(anyio_backend: str) -> Scene:
    return Scene()


async def test_an_item_is_computed_once_and_then_a_hit(scene: Scene) -> None:
    first = await scene.ask("a")
    scene.wall.advance(7.0)
    second = await scene.ask("a")

    assert sources(first) == [_COMPUTED]
    assert sources(second) == [_HIT]
    assert second.outcomes[0].result == first.outcomes[0].result
    assert second.outcomes[0].age == 7.0
    assert (second.outcomes[0].rows, second.outcomes[0].tokens) == (0, 0)


async def test_only_the_misses_of_a_request_travel(scene: Scene) -> None:
    await scene.ask("a", "b")

    answer = await scene.ask("a", "c", "b", "d")

    assert sources(answer) == [_HIT, _COMPUTED, _HIT, _COMPUTED]
    assert scene.runner.computed[2:] == [b"c", b"d"]


async def test_equal_items_of_one_request_are_computed_once(scene: Scene) -> None:
    answer = await scene.ask("a", "a", "b", "a")

    assert sources(answer) == [_COMPUTED, _COLLAPSED, _COMPUTED, _COLLAPSED]
    assert scene.runner.computed == [b"a", b"b"]


async def test_equal_requests_at_once_are_computed_once(scene: Scene) -> None:
    answers = await asyncio.gather(*(scene.ask("a") for _ in range(200)))

    assert scene.runner.computed == [b"a"]
    assert sorted(outcome for answer in answers for outcome in sources(answer)) == (
        [_COLLAPSED] * 199 + [_COMPUTED]
    )
    assert sum(answer.outcomes[0].rows for answer in answers) == 1


async def test_requests_that_refuse_truncation_join_only_each_other(scene: Scene) -> None:
    scene.runner.gate.clear()
    asked = [
        asyncio.create_task(scene.ask("a", truncate=truncate)) for truncate in (True, False, False)
    ]
    await until(lambda: scene.flights.statistics().led + scene.flights.statistics().joined == 3)
    scene.runner.gate.set()

    answers = await asyncio.gather(*asked)

    assert [sources(answer) for answer in answers] == [[_COMPUTED], [_COMPUTED], [_COLLAPSED]]
    assert [work.truncate for work in scene.runner.works] == [True, False]


async def test_a_leader_that_leaves_harms_nobody(scene: Scene) -> None:
    scene.runner.gate.clear()
    leader = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))
    follower = asyncio.create_task(scene.ask("a"))
    await until(lambda: scene.flights.statistics().joined == 1)

    leader.cancel()
    scene.runner.gate.set()

    assert sources(await follower) == [_COLLAPSED]
    assert scene.flights.statistics().in_flight == 0


async def test_a_follower_outlives_a_leader_with_less_time(scene: Scene) -> None:
    scene.runner.gate.clear()
    leader = asyncio.create_task(scene.ask("a", within=0.05))
    await until(lambda: bool(scene.runner.works))
    follower = asyncio.create_task(scene.ask("a", within=60.0))

    hurried = await leader
    scene.runner.gate.set()

    failure = hurried.outcomes[0].failure
    assert failure is not None
    assert failure.code == "deadline_exceeded"
    assert sources(await follower) == [_COMPUTED]


async def test_a_request_does_not_outlive_its_deadline(scene: Scene) -> None:
    scene.runner.gate.clear()

    answer = await scene.ask("a", "b", within=0.1)

    codes = [outcome.failure and outcome.failure.code for outcome in answer.outcomes]
    assert codes == ["deadline_exceeded", "deadline_exceeded"]


async def test_what_landed_while_redis_was_asked_is_not_computed_again(scene: Scene) -> None:
    await scene.ask("a")
    ((key, entry),) = scene.cache.entries.items()
    scene.cache.entries.clear()
    scene.cache.before_lookup = lambda: scene.cache.store_all([(key, entry)])

    answer = await scene.ask("a")

    assert sources(answer) == [_HIT]
    assert scene.runner.computed == [b"a"]


async def test_no_cache_computes_anew_and_stores(scene: Scene) -> None:
    await scene.ask("a")
    scene.wall.advance(5.0)

    again = await scene.ask("a", directives=CacheDirectives(no_cache=True))

    assert sources(again) == [_COMPUTED]
    assert [entry.stored_at for entry in scene.cache.entries.values()] == [1_005.0]


async def test_no_store_leaves_nothing_behind(scene: Scene) -> None:
    await scene.ask("a", directives=CacheDirectives(no_store=True))

    assert scene.cache.entries == {}


async def test_only_if_cached_computes_nothing(scene: Scene) -> None:
    with pytest.raises(NotCached):
        await scene.ask("a", directives=CacheDirectives(only_if_cached=True))

    assert scene.runner.computed == []


async def test_a_refusal_is_remembered_for_a_short_while(scene: Scene) -> None:
    refusal = ItemFailure(status=422, code="empty_input", detail="Say something.")
    scene.runner.failure = refusal
    await scene.ask("")

    again = await scene.ask("")
    scene.wall.advance(scene.document.cache.refusal_ttl)
    scene.cache.entries = {
        key: entry for key, entry in scene.cache.entries.items() if entry.expires_at > scene.wall()
    }
    later = await scene.ask("")

    assert again.outcomes[0].failure == refusal
    assert later.outcomes[0].failure == refusal
    assert len(scene.runner.computed) == 2


class _PartialRunner(GatedRunner):
    """Answers items of which a part failed."""

    @override
    def _outcome(self, body: bytes) -> ItemOutcome:
        return replace(super()._outcome(body), is_partial=True)


async def test_a_result_of_which_a_part_failed_is_not_stored(anyio_backend: str) -> None:
    scene = Scene(runner=_PartialRunner())

    first, second = await scene.ask("a"), await scene.ask("a")

    assert [*sources(first), *sources(second)] == [_COMPUTED, _COMPUTED]
    assert scene.cache.entries == {}


@pytest.mark.parametrize("code", ["algorithm_too_slow", "guard_too_slow"])
async def test_a_lack_of_time_is_not_remembered(scene: Scene, code: str) -> None:
    slow = ItemFailure(status=422, code=code, detail="It took too long.")
    scene.runner.failure = slow

    await scene.ask("a")
    await scene.ask("a")

    assert len(scene.runner.computed) == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_fault_is_never_remembered(scene: Scene, status: int) -> None:
    scene.runner.failure = ItemFailure(status=status, code="x", detail="No.", retryable=True)
    await scene.ask("a")
    scene.runner.failure = None

    answer = await scene.ask("a")

    assert sources(answer) == [_COMPUTED]


async def test_tenants_do_not_see_each_others_answers(scene: Scene) -> None:
    await scene.ask("a", tenant="t1")

    answer = await scene.ask("a", tenant="t2")

    assert sources(answer) == [_COMPUTED]
    assert {work.scope for work in scene.runner.works} == {"tenant:t1", "tenant:t2"}


async def test_a_shared_model_serves_tenants_each_others_answers(scene: Scene) -> None:
    scene.configure(scope="shared")
    await scene.ask("a", tenant="t1")

    answer = await scene.ask("a", tenant="t2")

    assert sources(answer) == [_HIT]


@pytest.mark.parametrize("epoch", ["model:sentiment", "tenant:t1"])
async def test_a_raised_epoch_forgets(scene: Scene, epoch: str) -> None:
    await scene.ask("a")
    scene.epochs = {epoch: 1}

    answer = await scene.ask("a")

    assert sources(answer) == [_COMPUTED]


async def test_another_revision_has_answers_of_its_own(scene: Scene) -> None:
    await scene.ask("a")
    scene.models.infos["sentiment"] = msgspec.structs.replace(INFO, revision="bbbbbbbbbbbb")

    answer = await scene.ask("a")

    assert sources(answer) == [_COMPUTED]


async def test_a_text_goes_where_its_rows_are_known_whatever_its_key(scene: Scene) -> None:
    await scene.ask("a", "b")
    await scene.ask("a", tenant="t2")

    first, second = scene.runner.started
    bodies = [item.body for item in first.items]
    assert len(set(bodies)) == 2
    assert second.items[0].body == bodies[0]


async def test_a_model_whose_answers_are_not_kept_is_computed_each_time(scene: Scene) -> None:
    scene.configure(cache_ttl=0)
    await scene.ask("a")

    answer = await scene.ask("a")

    assert sources(answer) == [_COMPUTED]
    assert scene.cache.entries == {}


async def test_what_was_kept_is_not_given_once_nothing_is(scene: Scene) -> None:
    await scene.ask("a")

    scene.configure(cache_ttl=0)

    assert sources(await scene.ask("a")) == [_COMPUTED]


@pytest.mark.parametrize(
    ("asked", "cache_ttl", "is_shared"),
    [
        ({}, 60.0, True),
        ({}, 0.0, False),
        ({"truncate": False}, 60.0, False),
        ({"directives": CacheDirectives(no_cache=True)}, 60.0, False),
    ],
    ids=["plain", "never kept", "not truncated", "without the cache"],
)
async def test_other_workers_learn_of_what_all_may_be_given(
    asked: dict[str, Any], cache_ttl: float, *, is_shared: bool, scene: Scene
) -> None:
    scene.configure(cache_ttl=cache_ttl)

    await scene.ask("a", **asked)

    (work,) = scene.runner.works
    assert work.is_shared == is_shared


async def test_what_other_workers_computed_may_not_be_too_old(scene: Scene) -> None:
    scene.configure(cache_ttl=60.0)
    await scene.ask("a")

    (work,), (entry,) = scene.runner.works, scene.cache.entries.values()

    assert work.is_valid is not None
    ages = {age: work.is_valid(entry, scene.wall() + age) for age in (60.0, 61.0)}
    assert ages == {60.0: True, 61.0: False}


async def test_a_bug_below_leaves_nobody_waiting_and_the_next_request_leads(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.runner.bug = RuntimeError("a bug")

    first = await scene.ask("a", "b", within=60.0)
    scene.runner.bug = None
    second = await scene.ask("a", "b")

    codes = [outcome.failure and outcome.failure.code for outcome in first.outcomes]
    assert codes == ["internal_error", "internal_error"]
    assert sources(second) == [_COMPUTED, _COMPUTED]
    (logged,) = caplog.records
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], RuntimeError)


async def test_an_answer_says_whether_its_model_may_be_kept(scene: Scene) -> None:
    kept = await scene.ask("a")
    scene.configure(cache_ttl=0)
    not_kept = await scene.ask("a")

    assert (kept.is_cacheable, not_kept.is_cacheable) == (True, False)


async def test_a_request_without_the_cache_joins_what_is_in_flight(scene: Scene) -> None:
    scene.runner.gate.clear()
    leader = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))

    joined = asyncio.create_task(scene.ask("a", directives=CacheDirectives(no_cache=True)))
    await until(lambda: scene.flights.statistics().joined == 1)
    scene.runner.gate.set()

    assert sources(await joined) == [_COLLAPSED]
    assert sources(await leader) == [_COMPUTED]


async def test_a_model_that_nobody_serves_is_not_found(scene: Scene) -> None:
    with pytest.raises(ModelNotFound, match="`nobody`"):
        await scene.ask("a", model="nobody")


async def test_a_model_that_is_switched_off_is_not_found(scene: Scene) -> None:
    scene.configure(enabled=False)

    with pytest.raises(ModelNotFound):
        await scene.ask("a")


async def test_before_any_backend_was_reached_nothing_is_said_about_models(scene: Scene) -> None:
    scene.models.infos.clear()

    with pytest.raises(UpstreamUnavailable) as refused:
        await scene.ask("a")

    assert refused.value.retry_after == 1.0


async def test_a_task_that_the_model_does_not_answer_is_named(scene: Scene) -> None:
    with pytest.raises(TaskNotSupported, match="`classify`, not `embed`"):
        await scene.ask("a", task=Task.EMBED)


def _overloaded() -> ItemFailure:
    return ItemFailure(status=503, code="overloaded", detail="Busy.", retryable=True)


@pytest.mark.parametrize(
    ("leads", "joins", "is_tried_again"),
    [
        (Criticality.SHEDDABLE, Criticality.DEFAULT, True),
        (Criticality.DEFAULT, Criticality.CRITICAL, True),
        (Criticality.SHEDDABLE, Criticality.SHEDDABLE, False),
        (Criticality.CRITICAL, Criticality.DEFAULT, False),
    ],
)
async def test_who_joined_is_shed_with_the_leader_unless_it_matters_more(
    leads: Criticality, joins: Criticality, *, is_tried_again: bool, anyio_backend: str
) -> None:
    scene = Scene(runner=FailsOnce())
    scene.runner.gate.clear()
    scene.runner.failure = _overloaded()
    leader = asyncio.create_task(scene.ask("a", criticality=leads))
    await until(lambda: bool(scene.runner.works))
    joined = asyncio.create_task(scene.ask("a", criticality=joins))
    await until(lambda: scene.flights.statistics().joined == 1)

    scene.runner.gate.set()
    await leader
    answer = await joined

    assert sources(await leader) == [_FAILED]
    assert sources(answer) == [_COMPUTED if is_tried_again else _FAILED]
    assert [work.criticality for work in scene.runner.works[1:]] == [joins] * is_tried_again


@pytest.mark.parametrize("is_same_caller", [False, True])
async def test_who_joined_is_refused_only_by_limits_of_its_own(
    anyio_backend: str, *, is_same_caller: bool
) -> None:
    scene = Scene(runner=FailsOnce())
    scene.runner.gate.clear()
    scene.runner.failure = ItemFailure(status=429, code="rate_limited", detail="Later.")
    leader = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))
    if not is_same_caller:
        scene.principals["t1"] = replace(scene.principals["t1"], key=KeyId("another"))
    joined = asyncio.create_task(scene.ask("a"))
    await until(lambda: scene.flights.statistics().joined == 1)

    scene.runner.gate.set()

    assert sources(await leader) == [_FAILED]
    assert sources(await joined) == [_FAILED if is_same_caller else _COMPUTED]


async def test_what_fails_a_request_is_not_the_limit_of_another_caller(anyio_backend: str) -> None:
    scene = Scene(runner=FailsOnce())
    scene.runner.gate.clear()
    scene.runner.failure = ItemFailure(status=429, code="rate_limited", detail="Later.")
    leader = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))
    scene.principals["t1"] = replace(scene.principals["t1"], key=KeyId("another"))
    joined = asyncio.create_task(scene.ask("a", within=0.0))
    await until(lambda: scene.flights.statistics().joined == 1)

    scene.runner.gate.set()
    await leader
    (outcome,) = (await joined).outcomes

    assert outcome.failure is not None
    assert outcome.failure.code == "deadline_exceeded"


async def test_equal_items_of_a_request_that_is_over_its_limit_are_refused_together(
    scene: Scene,
) -> None:
    scene.runner.failure = ItemFailure(status=429, code="rate_limited", detail="Later.")

    answer = await scene.ask("a", "a", "a", "b")

    assert sources(answer) == [_FAILED] * 4
    assert scene.runner.computed == [b"a", b"b"]


async def test_who_waits_for_work_that_is_given_up_hears_that_and_of_no_fault(scene: Scene) -> None:
    scene.runner.gate.clear()
    asked = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))

    scene.runner.cancel(scene.runner.started[0].items)
    (outcome,) = (await asked).outcomes

    assert outcome.failure is not None
    assert (outcome.failure.status, outcome.failure.code) == (503, "cancelled")


@pytest.fixture
async def tiered(anyio_backend: str) -> Scene:
    return Scene(tiers=True)


async def test_a_shorter_life_applies_to_what_is_stored(tiered: Scene) -> None:
    tiered.configure(cache_ttl=86_400.0)
    await tiered.ask("a")
    tiered.wall.advance(2.0)
    kept = sources(await tiered.ask("a"))

    tiered.configure(cache_ttl=1.0)

    assert kept == [Source.HIT]
    assert sources(await tiered.ask("a")) == [_COMPUTED]
    assert sources(await tiered.ask("a")) == [Source.HIT]


async def test_a_shorter_life_applies_to_refusals_that_are_stored(tiered: Scene) -> None:
    tiered.runner.failure = ItemFailure(status=422, code="empty_input", detail="Say something.")
    for _ in range(2):
        await tiered.ask("a")
        tiered.wall.advance(2.0)
    kept = len(tiered.runner.computed) == 1

    cache = replace(tiered.document.cache, refusal_ttl=1.0)
    tiered.document = replace(tiered.document, cache=cache)
    await tiered.ask("a")

    assert kept
    assert len(tiered.runner.computed) == 2


async def test_purging_a_tenant_reaches_its_answers_that_others_are_given(tiered: Scene) -> None:
    tiered.configure(scope="shared")
    await tiered.ask("of one", tenant="one")
    await tiered.ask("of two", tenant="two")
    before = sources(await tiered.ask("of one", "of two", tenant="two"))

    tiered.epochs = {"tenant:one": 1}

    after = sources(await tiered.ask("of one", "of two", tenant="two"))
    assert before == [Source.HIT, Source.HIT]
    assert after == [_COMPUTED, Source.HIT]
    assert sources(await tiered.ask("of one", tenant="one")) == [Source.HIT]


async def test_an_answer_computed_while_its_tenant_is_purged_is_not_given(tiered: Scene) -> None:
    tiered.configure(scope="shared")
    tiered.runner.gate.clear()
    asking = asyncio.create_task(tiered.ask("a", tenant="one"))
    await until(lambda: bool(tiered.runner.works))

    tiered.epochs = {"tenant:one": 1}
    tiered.runner.gate.set()
    await asking

    assert sources(await tiered.ask("a", tenant="two")) == [_COMPUTED]


async def test_who_joins_what_another_computes_gives_back_what_its_look_up_claimed(
    scene: Scene,
) -> None:
    scene.runner.gate.clear()
    leads = asyncio.create_task(scene.ask("a", directives=CacheDirectives(no_store=True)))
    await until(lambda: bool(scene.runner.works))

    joins = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.cache.released))
    scene.runner.gate.set()
    await leads

    assert sources(await joins) == [_COLLAPSED]
    assert len(scene.cache.released) == 1


async def test_what_is_given_back_was_taken_before_by_whoever_computes_it(scene: Scene) -> None:
    begun: list[int] = []
    scene.cache.on_release = lambda: begun.append(scene.runner.begun)

    await asyncio.gather(scene.ask("a"), scene.ask("a"), scene.ask("b", "c", "b"))

    assert begun == [1, 3]


async def test_one_whose_caller_leaves_is_computed_all_the_same(scene: Scene) -> None:
    scene.runner.gate.clear()
    asked = asyncio.create_task(scene.ask("a"))
    await until(lambda: bool(scene.runner.works))

    asked.cancel()
    await asyncio.wait((asked,))
    scene.runner.gate.set()
    await until(lambda: bool(scene.cache.entries))

    assert sources(await scene.ask("a")) == [_HIT]


@pytest.mark.parametrize("lane", ["interactive", "bulk"])
async def test_no_other_worker_waits_for_bulk_work(
    lane: Literal["interactive", "bulk"], anyio_backend: str
) -> None:
    scene = Scene(lane=lane)

    await scene.ask("a")

    (work,) = scene.runner.works
    assert work.lane == lane
    assert [*scene.cache.claims, work.is_shared] == [lane == "interactive"] * 2
