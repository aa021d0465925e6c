"""Requests of one item that miss together are computed as one work, and answered each by itself."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace
from typing_extensions import override

from gateway.cache.entry import Validity
from gateway.cache.key import CacheKey
from gateway.dispatch.work import Work
from gateway.inference.claiming import ClaimingRunner
from gateway.inference.coalescing import Flights
from gateway.inference.gathering import MissGatherer
from gateway.inference.interfaces import SharedCache
from gateway.inference.prepared_request import PreparedRequest
from gateway.tasks import CallbackBatch
from gateway.telemetry.tracing import Tracer
from gateway.types import CacheDirectives, Caller, Criticality, ItemFailure, KeyId, Source
from testing.waiting import until
from tests.integration.test_stored_answers_of_shared_models import ClaimedByNobody
from tests.support.dispatching import dispatch
from tests.support.inference_scene import FailingRunner, GatedRunner, RecordedTasks, Scene, sources

pytestmark = pytest.mark.anyio


async def test_they_are_one_work_and_each_gets_its_own_answer() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0

    answers = await asyncio.gather(
        *(scene.ask(f"text {number}", deadline=deadline) for number in range(5))
    )

    (work,) = scene.runner.works
    assert work.is_gathered
    assert not work.atomic
    assert [answer.outcomes[0].result for answer in answers] == [
        msgspec.json.encode(b"text %d" % number) for number in range(5)
    ]
    assert [sources(answer) for answer in answers] == [[Source.COMPUTED]] * 5
    assert [item.key is not None for item in work.items] == [True] * 5
    assert len(scene.cache.entries) == 5


async def test_equal_ones_are_computed_once() -> None:
    scene = Scene()

    answers = await asyncio.gather(*(scene.ask(text) for text in ("a", "b", "a")))

    assert scene.runner.computed == [b"a", b"b"]
    assert [sources(one) for one in answers] == [
        [Source.COMPUTED],
        [Source.COMPUTED],
        [Source.COLLAPSED],
    ]


async def test_those_that_differ_are_works_of_their_own() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    no_store = CacheDirectives(no_store=True)

    await asyncio.gather(
        scene.ask("a", deadline=deadline),
        scene.ask("b", deadline=deadline, tenant="t2"),
        scene.ask("c", deadline=deadline, criticality=Criticality.SHEDDABLE),
        scene.ask("d", deadline=deadline, directives=no_store),
        scene.ask("e", deadline=deadline + 1.0),
        scene.ask("f", "g", deadline=deadline),
        scene.ask("h", deadline=deadline),
    )

    bodies = [[item.body for item in work.items] for work in scene.runner.works]
    assert sorted(bodies) == [[b"a", b"h"], [b"b"], [b"c"], [b"d"], [b"e"], [b"f", b"g"]]


async def test_the_work_of_each_key_is_charged_to_its_own_limits() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    first, caller = scene.prepared("a", deadline=deadline)
    second, _ = scene.prepared("b", deadline=deadline)
    other = replace(caller, principal=replace(caller.principal, key=KeyId("other")))

    await asyncio.gather(scene.inference.infer(first, caller), scene.inference.infer(second, other))

    charged = [(work.principal, work.items[0].body) for work in scene.runner.works]
    assert charged == [(caller.principal, b"a"), (other.principal, b"b")]


async def test_they_are_as_many_works_as_calls_have_room_for() -> None:
    """A backend refuses a body of more than some MiB, and each of these alone is valid."""
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    texts = [f"{number:06}" * 10_000 for number in range(9)]
    small = [str(number) for number in range(300)]

    await asyncio.gather(*(scene.ask(text, deadline=deadline) for text in texts))
    await asyncio.gather(*(scene.ask(text, deadline=deadline) for text in small))

    assert scene.runner.computed == [text.encode() for text in texts + small]
    assert [len(work.items) for work in scene.runner.works] == [4, 4, 1, 256, 44]


async def test_a_bug_costs_no_one_more_than_an_error() -> None:
    scene = Scene()
    scene.runner.bug = ZeroDivisionError()

    answers = await asyncio.gather(scene.ask("a"), scene.ask("b"))

    assert [sources(answer) for answer in answers] == [[Source.FAILED]] * 2
    assert scene.flights.statistics().in_flight == 0


async def test_a_bug_in_one_work_of_those_that_are_alike_costs_the_others_nothing() -> None:
    flights, batch, works = Flights(), CallbackBatch(), list[int]()

    def compute(_prepared: PreparedRequest, _caller: Caller, items: range, _: list[str]) -> None:
        works.append(len(items))
        if len(works) == 2:
            raise ZeroDivisionError

    gatherer = MissGatherer(compute=compute, flights=flights, records=lambda _: False, batch=batch)
    scene = Scene()
    with batch:
        for number in range(600):
            prepared, caller = scene.prepared(str(number), deadline=60.0)
            flights.lead(prepared.flight_keys[0])
            gatherer.add(prepared, caller)

    assert works == [256, 256, 88]
    assert flights.statistics().in_flight == 256 + 88


async def test_one_whose_caller_leaves_is_computed_all_the_same() -> None:
    scene = Scene()
    scene.runner.gate.clear()
    asked = [asyncio.create_task(scene.ask(text)) for text in ("a", "b")]
    await until(lambda: bool(scene.runner.works))

    asked[0].cancel()
    await asyncio.wait(asked[:1])
    scene.runner.gate.set()

    assert sources(await asked[1]) == [Source.COMPUTED]
    assert len(scene.cache.entries) == 2


async def test_who_joins_what_another_computes_gives_back_what_its_look_up_claimed() -> None:
    scene = Scene()
    scene.runner.gate.clear()
    no_store = CacheDirectives(no_store=True)
    leads = asyncio.create_task(scene.ask("a", directives=no_store))
    await until(lambda: bool(scene.runner.works))

    joins = asyncio.create_task(scene.ask("a", by_callback=True))
    await until(lambda: bool(scene.cache.released))
    scene.runner.gate.set()
    await leads

    assert sources(await joins) == [Source.COLLAPSED]
    assert len(scene.cache.released) == 1


async def test_what_is_given_back_was_taken_before_by_whoever_computes_it() -> None:
    scene = Scene()
    begun: list[int] = []
    scene.cache.on_release = lambda: begun.append(len(scene.runner.computed))

    await asyncio.gather(scene.ask("a"), scene.ask("a"), scene.ask("b", "c", "b"))

    assert begun == [3, 3]


class SomeClaimed(ClaimedByNobody):
    """A cache of which look-ups claimed some keys, and another worker others."""

    def __init__(self, ours: Sequence[CacheKey]) -> None:
        super().__init__()
        self.ours = set(ours)
        self.asked: list[CacheKey] = []

    @override
    def has_claimed(self, keys: Sequence[CacheKey]) -> bool:
        """Tell whether all of `keys` are ours, once."""
        found = self.ours.issuperset(keys)
        if found:
            self.ours.difference_update(keys)
        return found

    @override
    async def claim(self, keys: Sequence[CacheKey], is_valid: Validity | None = None) -> list[bool]:
        """Say that nobody has claimed any."""
        self.asked += keys
        return [False] * len(keys)


async def test_of_gathered_items_those_that_are_claimed_wait_for_no_other() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    await asyncio.gather(*(scene.ask(text, deadline=deadline) for text in "abc"))
    (work,) = scene.runner.works
    keys = [item.key for item in work.items if item.key is not None]
    runner = GatedRunner()
    cache: SharedCache = (claims := SomeClaimed(keys[:2]))
    claiming = ClaimingRunner(
        runner, cache=cache, tasks=RecordedTasks(), lease=1.0, tracer=Tracer()
    )
    ended: list[int] = []

    await dispatch(
        claiming,
        replace(work, principal=None),
        deadline=deadline,
        settle=lambda outcomes: ended.extend(index for index, _ in outcomes),
    )

    assert [_bodies(each) for each in runner.works] == [[b"a", b"b"], [b"c"]]
    assert claims.asked == keys[2:]
    assert sorted(ended) == [0, 1, 2]


async def test_gathered_items_that_nobody_has_claimed_are_claimed_and_computed_together() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    await asyncio.gather(*(scene.ask(text, deadline=deadline) for text in "abc"))
    (work,) = scene.runner.works
    keys = [item.key for item in work.items if item.key is not None]
    runner = GatedRunner()
    cache: SharedCache = (claims := SomeClaimed(keys[:1]))
    tasks = RecordedTasks()
    claiming = ClaimingRunner(runner, cache=cache, tasks=tasks, lease=1.0, tracer=Tracer())
    ended: list[int] = []

    await dispatch(
        claiming,
        replace(work, principal=None),
        deadline=deadline,
        settle=lambda outcomes: ended.extend(index for index, _ in outcomes),
    )

    assert [_bodies(each) for each in runner.works] == [[b"a"], [b"b", b"c"]]
    assert claims.asked == keys[1:]
    assert sorted(ended) == [0, 1, 2]


class Released(SomeClaimed):
    """A cache that notes which claims are ended."""

    def __init__(self) -> None:
        super().__init__([])
        self.released: list[CacheKey] = []

    @override
    def release(self, keys: Sequence[CacheKey]) -> None:
        """Note them."""
        self.released += keys


async def test_the_claim_of_an_item_that_failed_ends_before_others_of_its_work() -> None:
    scene = Scene()
    deadline = scene.loop_time() + 60.0
    await asyncio.gather(*(scene.ask(text, deadline=deadline) for text in "ab"))
    (work,) = scene.runner.works
    late = ItemFailure(status=503, code="overloaded", detail="Full.")
    cache: SharedCache = (claims := Released())
    claims.ours.update(item.key for item in work.items if item.key is not None)
    claiming = ClaimingRunner(
        FailingRunner(late), cache=cache, tasks=RecordedTasks(), lease=1.0, tracer=Tracer()
    )
    ended: list[int] = []

    started = claiming.start(
        replace(work, principal=None),
        deadline=deadline,
        settle=lambda outcomes: ended.extend(index for index, _ in outcomes),
    )
    await until(lambda: bool(ended))

    assert claims.released == [work.items[0].key]
    started.cancel()


def _bodies(work: Work) -> list[bytes]:
    return [item.body for item in work.items]
