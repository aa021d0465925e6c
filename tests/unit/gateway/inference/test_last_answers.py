"""Answers from before: when they are given, what is refreshed, and when they never are."""

import asyncio
import math
from collections.abc import Callable

import msgspec
import pytest

from sluicegate.gateway.config.document import CacheConfig
from sluicegate.gateway.errors import NotCached
from sluicegate.gateway.types import (
    Answer,
    CacheDirectives,
    Criticality,
    ItemFailure,
    Source,
    Stale,
)
from sluicegate.wire.protocol import Task, Variant
from testing.waiting import until
from tests.support.inference_scene import INFO, Scene, sources

pytestmark = pytest.mark.anyio
_HIT, _COMPUTED, _FAILED = Source.HIT, Source.COMPUTED, Source.FAILED
_NEXT = msgspec.structs.replace(INFO, revision="bbbbbbbbbbbb")
_AWAY = ItemFailure(status=503, code="upstream_unavailable", detail="Away.", retryable=True)
_ANY = CacheDirectives(max_stale=math.inf)


@pytest.fixture
async def scene(anyio_backend: str) -> Scene:
    """A model whose answers live 100 s, then 50 s beside a refresh, 80 s where nothing answers."""
    made = Scene(tiers=True)
    made.configure(cache_ttl=100.0, stale_while_revalidate=50.0, stale_if_error=80.0)
    return made


def roll_out(scene: Scene) -> None:
    scene.models.infos["sentiment"] = _NEXT


async def refreshed(scene: Scene) -> None:
    await until(lambda: scene.last_answers.statistics().refreshing == 0, what="the refresh ends")


def kinds(answer: Answer) -> list[Stale]:
    return [outcome.stale for outcome in answer.outcomes]


async def test_the_older_revision_answers_once_more_and_is_refreshed_in_the_bulk_lane(
    scene: Scene,
) -> None:
    await scene.ask("a")
    scene.wall.advance(7.0)
    roll_out(scene)

    stale = await scene.ask("a")
    await refreshed(scene)
    fresh = await scene.ask("a")

    assert (sources(stale), kinds(stale)) == ([_HIT], [Stale.REVALIDATING])
    assert (stale.model.info.revision, stale.outcomes[0].age) == ("aaaaaaaaaaaa", 7.0)
    assert (stale.outcomes[0].rows, stale.outcomes[0].tokens) == (0, 0)
    assert (sources(fresh), kinds(fresh)) == ([_HIT], [Stale.NO])
    assert fresh.model.info.revision == "bbbbbbbbbbbb"
    assert scene.runner.computed == [b"a", b"a"]
    refresh = scene.runner.works[1]
    assert (refresh.principal, refresh.lane) == (None, "bulk")
    assert refresh.criticality is Criticality.SHEDDABLE
    assert refresh.model.info.revision == "bbbbbbbbbbbb"


async def test_a_model_that_did_not_opt_in_keeps_nothing_beyond_and_computes(scene: Scene) -> None:
    scene.configure(cache_ttl=100.0)
    await scene.ask("a")
    entries = scene.tiers.statistics().memory.entries
    roll_out(scene)

    assert entries == 1
    assert sources(await scene.ask("a", directives=_ANY)) == [_COMPUTED]


async def test_a_verdict_of_a_guard_is_never_given_beyond_its_time(scene: Scene) -> None:
    scene.models.infos["sentiment"] = msgspec.structs.replace(INFO, tasks=[Task.GUARD])
    await scene.ask("a", task=Task.GUARD)
    scene.models.infos["sentiment"] = msgspec.structs.replace(_NEXT, tasks=[Task.GUARD])
    scene.runner.failure = _AWAY

    answer = await scene.ask("a", task=Task.GUARD, directives=_ANY)

    assert sources(answer) == [_FAILED]


async def test_the_bound_after_a_rollout_begins_with_its_first_miss(scene: Scene) -> None:
    await scene.ask("a", "b", "c")
    roll_out(scene)
    scene.wall.advance(9.0)

    first = await scene.ask("a")
    scene.wall.advance(49.0)
    within = await scene.ask("b")
    scene.wall.advance(2.0)
    beyond = await scene.ask("c")

    assert kinds(first) == kinds(within) == [Stale.REVALIDATING]
    assert sources(beyond) == [_COMPUTED]


@pytest.mark.parametrize(("age", "found"), [(99.0, ""), (149.0, "stale"), (151.0, None)])
async def test_an_expired_answer_is_given_within_the_bound(
    scene: Scene, age: float, found: str | None
) -> None:
    await scene.ask("a")
    scene.wall.advance(age)

    answer = await scene.ask("a")

    if found is None:
        assert sources(answer) == [_COMPUTED]
    else:
        assert (sources(answer), kinds(answer)) == ([_HIT], [found])


async def test_an_item_is_refreshed_once_however_many_ask(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)
    scene.runner.gate.clear()

    answers = await asyncio.gather(*(scene.ask("a") for _ in range(50)))
    await until(lambda: len(scene.runner.works) == 2)
    scene.runner.gate.set()
    await refreshed(scene)

    assert all(kinds(answer) == [Stale.REVALIDATING] for answer in answers)
    assert scene.runner.computed == [b"a", b"a"]


async def test_beyond_the_bound_of_refreshes_answers_are_given_and_not_refreshed(
    scene: Scene,
) -> None:
    scene.document = msgspec.structs.replace(scene.document, cache=CacheConfig(refreshes=2))
    await scene.ask("a", "b", "c")
    roll_out(scene)
    scene.runner.gate.clear()

    answer = await scene.ask("a", "b", "c")
    await until(lambda: len(scene.runner.works) == 2)

    assert kinds(answer) == [Stale.REVALIDATING] * 3
    assert scene.runner.computed[3:] == [b"a", b"b"]
    statistics = scene.last_answers.statistics()
    assert (statistics.refreshing, statistics.refreshes_skipped) == (2, 1)
    scene.runner.gate.set()
    await refreshed(scene)
    await scene.ask("c")
    await refreshed(scene)
    assert scene.runner.computed[5:] == [b"c"]


async def test_what_a_refresh_cannot_do_leaves_room_for_the_next(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)
    scene.runner.failure = _AWAY

    for _ in range(3):
        assert kinds(await scene.ask("a")) == [Stale.REVALIDATING]
        await refreshed(scene)

    scene.runner.failure = None
    await scene.ask("a")
    await refreshed(scene)
    assert kinds(await scene.ask("a")) == [Stale.NO]


@pytest.mark.parametrize(
    ("status", "code", "is_old"),
    [
        (503, "upstream_unavailable", True),
        (503, "overloaded", True),
        (504, "deadline_exceeded", True),
        (502, "upstream_failed", True),
        (422, "too_long", False),
        (429, "rate_limited", False),
        (500, "internal_error", False),
    ],
)
async def test_an_old_answer_stands_in_where_no_backend_answers(
    scene: Scene, status: int, code: str, *, is_old: bool
) -> None:
    scene.configure(cache_ttl=100.0, stale_if_error=80.0)
    await scene.ask("a")
    roll_out(scene)
    scene.wall.advance(20.0)
    scene.runner.failure = ItemFailure(status=status, code=code, detail="No.")

    answer = await scene.ask("a", "b")

    assert sources(answer) == [_HIT if is_old else _FAILED, _FAILED]
    assert kinds(answer) == [Stale.ON_ERROR if is_old else Stale.NO, Stale.NO]


async def test_on_an_error_too_the_bound_holds(scene: Scene) -> None:
    await scene.ask("a")
    scene.runner.failure = _AWAY

    scene.wall.advance(179.0)
    within = await scene.ask("a")
    scene.wall.advance(2.0)
    beyond = await scene.ask("a")

    assert (kinds(within), sources(beyond)) == ([Stale.ON_ERROR], [_FAILED])


@pytest.mark.parametrize(
    ("directives", "is_old"),
    [
        (CacheDirectives(no_cache=True), False),
        (CacheDirectives(max_age=1_000.0), False),
        (CacheDirectives(max_age=1_000.0, max_stale=math.inf), True),
        (CacheDirectives(max_age=5.0, max_stale=math.inf), False),
        (CacheDirectives(max_stale=0.0), False),
        (CacheDirectives(max_stale=9.0), False),
        (CacheDirectives(max_stale=11.0), True),
        (CacheDirectives(only_if_cached=True), True),
        (CacheDirectives(no_store=True), True),
    ],
)
@pytest.mark.parametrize("is_away", [False, True])
async def test_the_caller_says_how_stale_an_answer_may_be(
    scene: Scene, directives: CacheDirectives, *, is_old: bool, is_away: bool
) -> None:
    await scene.ask("a")
    scene.wall.advance(110.0)
    scene.runner.failure = _AWAY if is_away else None

    answer = await scene.ask("a", directives=directives)

    assert (kinds(answer) != [Stale.NO]) is is_old


async def test_max_stale_accepts_what_is_else_kept_for_errors(scene: Scene) -> None:
    await scene.ask("a")
    scene.wall.advance(170.0)

    answer = await scene.ask("a", directives=_ANY)

    assert kinds(answer) == [Stale.REVALIDATING]


async def test_only_if_cached_takes_nothing_beyond_the_bound(scene: Scene) -> None:
    await scene.ask("a")
    scene.wall.advance(170.0)

    with pytest.raises(NotCached):
        await scene.ask("a", directives=CacheDirectives(only_if_cached=True))


async def test_a_caller_who_wants_nothing_stored_has_nothing_refreshed(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)

    await scene.ask("a", directives=CacheDirectives(no_store=True))

    assert scene.last_answers.statistics().refreshes == 0


@pytest.mark.parametrize("name", ["model:sentiment", "tenant:t1"])
async def test_what_was_purged_is_never_given(scene: Scene, name: str) -> None:
    await scene.ask("a")
    roll_out(scene)
    scene.epochs[name] = 1
    scene.runner.failure = _AWAY

    assert sources(await scene.ask("a", directives=_ANY)) == [_FAILED]


async def test_a_refresh_that_ends_after_a_purge_is_not_found(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)
    scene.runner.gate.clear()
    await scene.ask("a")
    await until(lambda: len(scene.runner.works) == 2)
    scene.epochs["model:sentiment"] = 1
    scene.runner.gate.set()
    await refreshed(scene)

    assert sources(await scene.ask("a")) == [_COMPUTED]


@pytest.mark.parametrize("part", sorted({*Variant._fields} - {"revision"}))
@pytest.mark.parametrize("directives", [CacheDirectives(), _ANY])
async def test_an_answer_of_another_variant_is_never_given(
    part: str, directives: CacheDirectives
) -> None:
    value = getattr(INFO, part)
    change = {part: value + 1 if isinstance(value, int) else f"{value}x"}
    scene = Scene(tiers=True)
    scene.configure(cache_ttl=100.0, stale_if_error=80.0)
    await scene.ask("a")
    scene.models.infos["sentiment"] = msgspec.structs.replace(INFO, **change)

    assert sources(await scene.ask("a", directives=directives)) == [_COMPUTED]


async def test_tenants_share_old_answers_only_where_they_share_answers(scene: Scene) -> None:
    await scene.ask("a", tenant="t1")
    roll_out(scene)
    assert sources(await scene.ask("a", tenant="t2")) == [_COMPUTED]

    scene.configure(scope="shared", stale_while_revalidate=50.0)
    await scene.ask("b", tenant="t1")
    scene.models.infos["sentiment"] = INFO
    assert kinds(await scene.ask("b", tenant="t2")) == [Stale.REVALIDATING]


async def test_a_refusal_of_the_new_revision_ends_the_older_answer(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)
    scene.runner.failure = ItemFailure(status=422, code="too_long", detail="Too long.")
    await scene.ask("a")
    await refreshed(scene)
    assert sources(await scene.ask("a")) == [_FAILED]

    scene.wall.advance(61.0)
    scene.runner.failure = None
    assert sources(await scene.ask("a")) == [_COMPUTED]


async def test_items_of_several_revisions_are_answered_under_the_present_one(scene: Scene) -> None:
    await scene.ask("a")
    roll_out(scene)

    answer = await scene.ask("a", "b")

    assert kinds(answer) == [Stale.REVALIDATING, Stale.NO]
    assert sources(answer) == [_HIT, _COMPUTED]
    assert answer.model.info.revision == "bbbbbbbbbbbb"


async def test_who_is_cancelled_while_it_looks_for_stale_answers_leaves_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    scene.configure(cache_ttl=100.0, stale_while_revalidate=50.0)
    held: list[Callable[[list[None]], object]] = []
    monkeypatch.setattr(
        scene.cache, "lookup_nowait", lambda _keys, on_done, *_: held.append(on_done)
    )
    prepared, caller = scene.prepared("a", "b")
    caller_task = asyncio.create_task(scene.compute(prepared, caller, [None, None]))
    await until(lambda: held != [])

    caller_task.cancel()
    await asyncio.wait([caller_task])
    held[0]([None, None])

    assert sorted(scene.cache.released) == sorted(prepared.keys)
    assert scene.runner.works == []
