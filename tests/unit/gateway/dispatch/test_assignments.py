"""Backends are assigned the models of their pools; one that moves is missing nowhere."""

import logging
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from typing_extensions import override

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.assignments import SETTLING, ModelAssigner
from sluicegate.gateway.routing.endpoint_state import EndpointState, ProbeFailure
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import BackendId, Endpoint
from sluicegate.gateway.upstream.base import CallFailed, Cause
from sluicegate.wire.plans import Assignment
from sluicegate.wire.protocol import ServingState
from testing.stub_backend import stub_model
from tests.support.clock import Clock
from tests.support.dispatching import endpoint, state
from tests.support.scripted_client import ScriptedClient

pytestmark = pytest.mark.anyio


def assigned(backend: str, *models: str) -> Endpoint:
    return msgspec.structs.replace(endpoint(backend), models=models)


def serving(*models: str, follows: Assignment | None = None) -> ServingState:
    found = state(models=[stub_model(name) for name in models])
    return msgspec.structs.replace(found, assignment=follows or Assignment())


class Recorder(ScriptedClient):
    """Takes assignments; fails where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[str, Assignment]] = []
        self.fails = False
        self.serves = serving()

    @override
    async def assign(
        self, endpoint: Endpoint, assignment: Assignment, *, time_limit: float
    ) -> ServingState:
        """See `BackendClient.assign`."""
        self.given.append((endpoint.backend, assignment))
        if self.fails:
            raise CallFailed(Cause.REFUSED, "there is nothing at this path")
        return msgspec.structs.replace(self.serves, assignment=assignment)


class CountingFleet(Fleet):
    """Counts what is asked of it."""

    looks = 0

    @override
    def state(self, backend: BackendId) -> EndpointState | None:
        """See `Fleet.state`."""
        self.looks += 1
        return super().state(backend)


class Scene:
    """A gateway whose document was published at second 2."""

    def __init__(
        self,
        *endpoints: Endpoint,
        unresolved: Sequence[Endpoint] = (),
        routing: RoutingConfig | None = None,
    ) -> None:
        self.clock = Clock()
        self.client = Recorder()
        self.fleet = CountingFleet(clock=self.clock, random=Random(1))
        self.fleet.configure(endpoints, routing or RoutingConfig())
        self.assigner = ModelAssigner(fleet=self.fleet, client=self.client, clock=self.clock)
        self.assigner.configure(endpoints, 2.0, unresolved=unresolved)

    async def probe(self, place: Endpoint, found: ServingState) -> ServingState:
        self.client.serves = found
        found = await self.assigner.bring_up(place, found)
        self.fleet.observe(place, found)
        return found

    def given(self) -> list[Assignment]:
        """Return what the backend `a` was assigned, one after the other."""
        return [assignment for backend, assignment in self.client.given if backend == "a"]

    def kept(self) -> Sequence[str]:
        """Return what it keeps for now."""
        return self.given()[-1].until


A, B = assigned("a", "x"), assigned("b", "y", "z-*")


async def test_a_backend_of_a_pool_without_models_is_left_alone() -> None:
    scene = Scene(endpoint("a"))

    await scene.probe(endpoint("a"), serving("x", "y"))

    assert scene.client.given == []


async def test_a_backend_is_given_what_its_pool_is_assigned_once() -> None:
    scene = Scene(A)

    found = await scene.probe(A, serving())
    await scene.probe(A, found)

    assert scene.client.given == [("a", Assignment(version=2000, models=("x",)))]


async def test_a_model_stays_until_its_new_backend_has_served_it_for_a_while() -> None:
    scene = Scene(A, B)
    await scene.probe(B, serving())
    follows = Assignment(version=2000, models=("x",), until=("y",))

    await scene.probe(A, serving("x", "y"))
    kept_at_first = scene.kept()
    await scene.probe(B, serving("y"))
    await scene.probe(A, serving("x", "y", follows=follows))
    given_too_early = len(scene.given())
    scene.clock.now += SETTLING
    await scene.probe(B, serving("y"))
    await scene.probe(A, serving("x", "y", follows=follows))

    assert kept_at_first == ("y",)
    assert given_too_early == 1
    assert scene.given()[1:] == [Assignment(version=2000, models=("x",))]


async def test_all_ready_backends_of_the_new_pool_are_waited_for() -> None:
    late, away = assigned("late", "y"), assigned("away", "y")
    scene = Scene(A, B, late, away)
    await scene.probe(B, serving("y"))
    await scene.probe(late, serving())
    scene.fleet.observe(away, ProbeFailure(detail="it cannot be reached"))
    scene.clock.now += SETTLING

    await scene.probe(A, serving("x", "y"))
    while_one_is_late = scene.kept()
    broken = msgspec.structs.replace(serving(), problems={"y": "no graph"})
    scene.fleet.observe(late, broken)
    scene.assigner.configure((A, B, late, away), 3.0)
    await scene.probe(A, serving("x", "y"))

    assert while_one_is_late == ("y",)
    assert scene.kept() == ()


async def test_a_model_stays_while_no_backend_of_its_new_pool_is_ready() -> None:
    scene = Scene(A, B)

    await scene.probe(A, serving("x", "y", "z-1@2"))

    assert scene.kept() == ("y", "z-1")


async def test_a_model_of_no_pool_goes() -> None:
    scene = Scene(A, B)

    await scene.probe(A, serving("x", "of-nobody"))

    assert scene.kept() == ()


async def test_a_backend_that_follows_a_newer_document_is_left_alone() -> None:
    scene = Scene(A)

    await scene.probe(A, serving("y", follows=Assignment(version=9000, models=("y",))))

    assert scene.client.given == []


async def test_a_backend_that_takes_none_is_tried_again_later() -> None:
    scene = Scene(A)
    scene.client.fails = True

    for _ in range(3):
        await scene.probe(A, serving("y"))
    tries = len(scene.client.given)
    scene.clock.now += 31.0
    await scene.probe(A, serving("y"))

    assert (tries, len(scene.client.given)) == (1, 2)


async def test_a_backend_that_is_assigned_nothing_any_more_is_told_so() -> None:
    free = endpoint("a")
    scene = Scene(free)

    await scene.probe(free, serving("x", follows=Assignment(version=1000, models=("x",))))

    assert scene.client.given == [("a", Assignment(version=2000))]


async def test_a_document_that_is_not_in_force_yet_assigns_nothing() -> None:
    scene = Scene(A)

    await scene.assigner.bring_up(assigned("new", "x"), serving())

    assert scene.client.given == []


async def test_a_model_stays_while_the_name_of_its_new_pool_leads_to_no_backend() -> None:
    scene = Scene(A, unresolved=[assigned("pool", "y")])
    follows = Assignment(version=2000, models=("x",), until=("y",))

    await scene.probe(A, serving("x", "y", "of-nobody"))
    kept_at_first = scene.kept()
    new = assigned("pool@10.0.0.1", "y")
    scene.fleet.configure((A, new), RoutingConfig())
    scene.assigner.configure((A, new), 2.0)
    await scene.probe(A, serving("x", "y", follows=follows))
    given_too_early = len(scene.given())
    await scene.probe(new, serving("y"))
    scene.clock.now += SETTLING
    await scene.probe(A, serving("x", "y", follows=follows))

    assert kept_at_first == ("y",)
    assert given_too_early == 1
    assert scene.kept() == ()


async def test_a_model_stays_while_it_is_unknown_what_backends_with_labels_serve() -> None:
    away, labelled = endpoint("away"), endpoint("labelled")
    scene = Scene(A, away, labelled)
    scene.fleet.observe(away, ProbeFailure(detail="it cannot be reached"))
    scene.fleet.observe(labelled, serving("z"))

    await scene.probe(A, serving("x", "y"))
    kept = scene.kept()
    scene.fleet.observe(away, serving("z"))
    scene.assigner.configure((A, away, labelled), 3.0)
    await scene.probe(A, serving("x", "y"))
    scene.assigner.configure((A, away, labelled), 4.0, unresolved=[endpoint("pool")])
    await scene.probe(A, serving("x", "y"))

    assert kept == ("y",)
    assert [each.until for each in scene.given()] == [("y",), (), ("y",)]


async def test_a_model_settles_for_several_probes_of_each_backend() -> None:
    scene, settling = Scene(A, B, routing=RoutingConfig(probe_interval=5.0)), 15.0
    follows = Assignment(version=2000, models=("x",), until=("y",))
    await scene.probe(B, serving("y"))
    await scene.probe(A, serving("x", "y"))

    scene.clock.now += settling - 1.0
    await scene.probe(A, serving("x", "y", follows=follows))
    given_too_early = len(scene.given())
    scene.clock.now += 1.0
    await scene.probe(A, serving("x", "y", follows=follows))

    assert given_too_early == 1
    assert scene.kept() == ()


async def test_a_model_settles_for_longer_in_a_large_fleet() -> None:
    many = [assigned(f"m{n}", "z") for n in range(1_998)]
    scene = Scene(A, B, *many)
    await scene.probe(B, serving("y"))
    await scene.probe(A, serving("x", "y"))

    # A process probes 2,000 backends in five seconds.
    scene.clock.now += 14.0
    follows = Assignment(version=2000, models=("x",), until=("y",))
    await scene.probe(A, serving("x", "y", follows=follows))

    assert len(scene.given()) == 1


async def test_backends_that_lose_a_model_look_at_the_others_once() -> None:
    losing = [assigned(f"l{n}", "x") for n in range(40)]
    gaining = [assigned(f"g{n}", "y") for n in range(40)]
    scene = Scene(*losing, *gaining)
    for each in gaining:
        await scene.probe(each, serving("y"))
    scene.clock.now += SETTLING

    for each in losing:
        await scene.probe(each, serving("x", "y"))

    assert scene.fleet.looks == len(gaining)


async def test_a_backend_that_takes_none_has_nobody_look_at_others() -> None:
    scene = Scene(A, B)
    scene.client.fails = True
    await scene.probe(A, serving("x", "y"))
    looks = scene.fleet.looks

    scene.clock.now += 10.0
    await scene.probe(A, serving("x", "y"))

    assert scene.fleet.looks == looks


async def test_a_backend_that_takes_none_is_given_a_new_document_at_once() -> None:
    scene = Scene(A)
    scene.client.fails = True
    await scene.probe(A, serving("y"))

    scene.client.fails = False
    scene.assigner.configure([A], 3.0)
    await scene.probe(A, serving("y"))

    assert [each.version for each in scene.given()] == [2000, 3000]


async def test_a_backend_that_stays_with_a_newer_document_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(A)
    newer = serving("y", follows=Assignment(version=3_602_000, models=("y",)))

    with caplog.at_level(logging.WARNING):
        await scene.probe(A, newer)
        # Another worker may have a document a little sooner.
        at_first = list(caplog.messages)
        for _ in range(3):
            scene.clock.now += 31.0
            await scene.probe(A, newer)

    assert at_first == []
    assert caplog.messages == ["a backend follows the models of a newer document"]
