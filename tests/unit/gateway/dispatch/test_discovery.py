"""Endpoints follow the addresses of their names, and outlive name servers that are away."""

import logging
from random import Random

import pytest

from sluicegate.gateway.config.document import RoutingConfig
from sluicegate.gateway.dispatch.discovery import MAX_ADDRESSES, Discovery
from sluicegate.gateway.types import BackendId, Endpoint, RegionName
from testing.waiting import until
from tests.support.dispatching import endpoint
from tests.support.table_resolver import TableResolver

pytestmark = pytest.mark.anyio

OFTEN = RoutingConfig(dns_interval=0.001, dns_timeout=0.05)


def named(name: str, *, entry: str = "eu", scheme: str = "http") -> Endpoint:
    return Endpoint(
        backend=BackendId(entry),
        region=RegionName("eu"),
        url=f"{scheme}://{name}",
        dns=name,
        weight=2.0,
    )


class Scene:
    """A discovery, and how often it told of a change."""

    def __init__(self, resolver: TableResolver, *endpoints: Endpoint) -> None:
        self.resolver = resolver
        self.endpoints = endpoints
        self.changes = 0
        self.discovery = Discovery(resolver=resolver, random=Random(1), changed=self._note)
        self.discovery.configure(endpoints, OFTEN)

    async def _note(self) -> None:
        self.changes += 1

    def backends(self) -> list[str]:
        return [each.backend for each in self.discovery.expand(self.endpoints)]

    async def asked_again(self) -> None:
        """Return when a look-up that began from now on has ended."""
        before = self.resolver.asked
        await until(lambda: self.resolver.asked >= before + 2)


async def test_a_name_stands_for_an_endpoint_at_each_address_in_its_place() -> None:
    resolver = TableResolver(backends=["10.0.0.2", "10.0.0.1", "fd00::1"])
    first, last = endpoint("first"), endpoint("last")
    scene = Scene(resolver, first, named("backends:8100", scheme="https"), last)

    async with scene.discovery:
        found = scene.discovery.expand(scene.endpoints)

    assert (found[0], found[-1]) == (first, last)
    assert [(each.backend, each.url) for each in found[1:-1]] == [
        ("eu@10.0.0.1", "https://10.0.0.1:8100"),
        ("eu@10.0.0.2", "https://10.0.0.2:8100"),
        ("eu@fd00::1", "https://[fd00::1]:8100"),
    ]
    one = found[1]
    assert (one.entry, one.region, one.weight) == ("eu", "eu", 2.0)
    assert (one.dns, one.server_name) == ("backends:8100", "backends")


async def test_names_that_lead_to_no_address_are_told_apart() -> None:
    away, empty = named("away:8100", entry="away"), named("empty:8100", entry="empty")
    resolver = TableResolver(backends=["10.0.0.1"], empty=[])
    scene = Scene(resolver, endpoint("first"), named("backends:8100"), away, empty)

    async with scene.discovery:
        assert scene.discovery.unresolved(scene.endpoints) == (away, empty)


async def test_records_in_another_order_change_nothing_and_new_ones_do() -> None:
    scene = Scene(TableResolver(backends=["10.0.0.1", "10.0.0.2"]), named("backends:8100"))

    async with scene.discovery:
        told = scene.changes
        scene.resolver.table["backends"] = ["10.0.0.2", "10.0.0.1"]
        await scene.asked_again()
        unchanged = scene.changes
        scene.resolver.table["backends"] = ["10.0.0.3", "10.0.0.1"]
        await until(lambda: scene.changes == told + 1)

    assert unchanged == told
    assert scene.backends() == ["eu@10.0.0.1", "eu@10.0.0.3"]


@pytest.mark.parametrize("is_hanging", [True, False])
async def test_what_was_found_stays_while_a_name_cannot_be_resolved(
    caplog: pytest.LogCaptureFixture, *, is_hanging: bool
) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene(TableResolver(backends=["10.0.0.1"]), named("backends:8100"))

    async with scene.discovery:
        known = scene.resolver.table.pop("backends")
        scene.resolver.is_hanging = is_hanging
        await until(lambda: scene.discovery.statistics().failures >= 3)
        meanwhile = scene.backends(), scene.discovery.statistics().failing
        scene.resolver.table["backends"], scene.resolver.is_hanging = known, False
        await until(lambda: scene.discovery.statistics().failing == 0)

    assert meanwhile == (["eu@10.0.0.1"], 1)
    assert scene.backends() == ["eu@10.0.0.1"]
    assert [record.message for record in caplog.records] == [
        "a name is not resolved; its addresses stay",
        "a name is resolved again",
    ]


async def test_a_name_that_is_not_there_yet_is_found_when_it_is() -> None:
    scene = Scene(TableResolver(), named("backends:8100"))

    async with scene.discovery:
        before = scene.backends()
        scene.resolver.table["backends"] = ["10.0.0.1"]
        await until(lambda: scene.backends() == ["eu@10.0.0.1"])

    assert before == []


async def test_a_name_leads_to_so_many_endpoints_and_no_more() -> None:
    many = [f"10.0.{number // 250}.{number % 250}" for number in range(MAX_ADDRESSES + 5)]
    scene = Scene(TableResolver(backends=many), named("backends:8100"))

    async with scene.discovery:
        found = scene.backends()

    assert len(found) == MAX_ADDRESSES


async def test_two_entries_of_one_name_share_its_look_ups() -> None:
    resolver = TableResolver(backends=["10.0.0.1"])
    scene = Scene(resolver, named("backends:1", entry="a"), named("backends:2", entry="b"))

    async with scene.discovery:
        found = scene.discovery.expand(scene.endpoints)
        statistics = scene.discovery.statistics()

    assert [each.url for each in found] == ["http://10.0.0.1:1", "http://10.0.0.1:2"]
    assert (statistics.names, statistics.addresses) == (1, 1)


async def test_names_of_the_next_configuration_are_known_when_it_comes_into_force() -> None:
    resolver = TableResolver(backends=["10.0.0.1"], others=["10.0.0.9"])
    scene = Scene(resolver, named("backends:8100"))
    later = (named("others:8100", entry="us"),)

    async with scene.discovery:
        await scene.discovery.prepare(later, OFTEN)
        # What changes meanwhile takes up the configuration that is still in force.
        scene.discovery.configure(scene.endpoints, OFTEN)
        scene.discovery.configure(later, OFTEN)
        asked = resolver.asked
        found = scene.discovery.expand(later)
        statistics = scene.discovery.statistics()

    assert asked == 2
    assert [each.backend for each in found] == ["us@10.0.0.9"]
    assert scene.backends() == []
    assert statistics.names == 1
