"""A worker is ready when it knows keys and a backend, and names what it lacks."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from random import Random

import msgspec
import pytest

from sluicegate.gateway.app.principals import PrincipalsFollower
from sluicegate.gateway.app.views import NO_REDIS, WorkerReadiness
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.http.draining import DRAINING, Draining
from sluicegate.gateway.ledger.principals import AccountsVersion, PrincipalChanges
from sluicegate.gateway.routing.endpoint_state import CallVerdict, ProbeFailure
from sluicegate.gateway.routing.fleet import Fleet
from sluicegate.gateway.types import KeyId, Principal, TenantId
from testing.waiting import until
from tests.support.clock import Clock
from tests.support.dispatching import endpoint, state

pytestmark = pytest.mark.anyio
_EU, _US = endpoint("eu-0"), endpoint("us-0", region="us")


class Accounts:
    """A store of keys, of none at first, which may be down."""

    def __init__(self) -> None:
        self.is_down = self.is_asked = False
        self.answers = threading.Event()
        self.answers.set()
        self.rows: Iterator[tuple[str, Principal]] = iter(())

    def changes(self, since: AccountsVersion | None) -> PrincipalChanges | None:
        """Return all that it has."""
        self.is_asked = True
        self.answers.wait()
        if self.is_down:
            raise DependencyUnavailable("the ledger cannot be reached")
        version = AccountsVersion(number=1)
        if since == version:
            return None
        return PrincipalChanges(version=version, is_everything=True, principals=self.rows)


def readiness_of(
    principals: PrincipalsFollower,
    backends: Fleet,
    *,
    draining: Draining | None = None,
    trouble: str = "",
    redis: Mapping[str, Callable[[], bool]] = NO_REDIS,
) -> WorkerReadiness:
    return WorkerReadiness(
        principals=principals,
        fleet=backends,
        draining=draining or Draining(),
        refusal_reason=lambda: trouble,
        redis=redis,
    )


def fleet() -> Fleet:
    made = Fleet(clock=Clock(), random=Random(1))
    made.configure([_EU, _US], RoutingConfig())
    return made


async def test_a_worker_that_knows_nothing_says_what_it_waits_for() -> None:
    accounts = Accounts()
    accounts.is_down = True
    principals = PrincipalsFollower(ring=KeyRing(), accounts=accounts)
    await principals.refresh()

    found = readiness_of(principals, fleet()).readiness()

    assert not found.ready
    assert [missing.split(":")[0] for missing in found.missing] == ["keys", "backends"]


async def test_one_region_is_enough_and_strangers_are_told_no_name_of_the_other() -> None:
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))
    backends.observe(_US, ProbeFailure(detail="refused"))

    found = readiness_of(principals, backends).readiness()

    assert (found.ready, found.missing) == (True, [])
    assert found.degraded == ["backends: some are not ready"]


async def test_a_redis_that_is_away_is_named_by_its_role_and_the_worker_serves_on() -> None:
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))
    backends.observe(_US, state("us-0"))
    redis = {"state_redis": lambda: True, "cache_redis": lambda: False}

    found = readiness_of(principals, backends, redis=redis).readiness()

    assert found.ready
    assert found.degraded == ["cache_redis: cannot be reached"]


async def test_a_ledger_that_is_away_is_named_and_the_worker_serves_on() -> None:
    accounts = Accounts()
    principals = PrincipalsFollower(ring=KeyRing(), accounts=accounts)
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))
    backends.observe(_US, state("us-0"))
    accounts.is_down = True
    await principals.refresh()

    found = readiness_of(principals, backends).readiness()

    assert found.ready
    assert found.degraded == ["ledger: cannot be reached"]


async def test_a_ledger_that_does_not_answer_is_away_before_the_read_has_failed() -> None:
    accounts, clock = Accounts(), Clock()
    principals = PrincipalsFollower(ring=KeyRing(), accounts=accounts, monotonic=clock)
    accounts.answers.clear()
    reading = asyncio.create_task(principals.refresh())
    await until(lambda: accounts.is_asked)

    at_first = principals.is_reached
    clock.advance(3.0)
    later = principals.is_reached
    accounts.answers.set()
    await reading

    assert (at_first, later, principals.is_reached) == (True, False, True)


async def test_a_ledger_that_answers_row_by_row_is_there_however_long_that_takes() -> None:
    accounts, clock = Accounts(), Clock()
    principals = PrincipalsFollower(ring=KeyRing(), accounts=accounts, monotonic=clock)
    seen = []

    def rows() -> Iterator[tuple[str, Principal]]:
        for number in range(4):
            clock.advance(1.5)
            seen.append(principals.is_reached)
            principal = Principal(tenant=TenantId("acme"), key=KeyId(f"key_{number}"))
            yield f"{number:064x}", principal

    accounts.rows = rows()
    await principals.refresh()

    assert seen == [True] * 4


async def test_a_worker_that_drains_is_not_ready() -> None:
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))
    draining = Draining()

    draining.announce()
    found = readiness_of(principals, backends, draining=draining).readiness()

    assert (found.ready, found.missing) == (False, [DRAINING])


async def test_backends_that_are_all_ejected_still_serve_and_the_worker_is_ready() -> None:
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))
    for _ in range(20):
        backends.record(_EU, CallVerdict.FAILED)
    model = backends.model("stub")
    assert model is not None

    found = readiness_of(principals, backends).readiness()

    assert backends.statistics()[0].ejected_for > 0
    assert [share.endpoint for share in backends.spread(model, [b"item"])] == [_EU]
    assert found.ready


async def test_a_worker_that_cannot_keep_events_is_not_ready() -> None:
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    backends.observe(_EU, state("eu-0"))

    found = readiness_of(principals, backends, trouble="No space left on device").readiness()

    assert found.missing == ["event log: No space left on device"]


async def test_readiness_is_public_and_names_no_file_of_a_backend() -> None:
    """Which path and what YAML is broken there is told to operators alone."""
    principals = PrincipalsFollower(ring=KeyRing(), accounts=Accounts())
    await principals.refresh()
    backends = fleet()
    broken = "mood: /srv/models/mood/2/model.yaml: while parsing `task: [oops`"
    backends.observe(_EU, msgspec.structs.replace(state("eu-0"), missing=[broken]))
    backends.observe(_US, state("us-0"))

    found = readiness_of(principals, backends).readiness()

    assert found.degraded == ["backends: some lack models, or revisions of them"]
