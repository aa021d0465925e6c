"""What every `Resolver` promises, asked of the system's and of the table that tests use."""

import asyncio
from collections.abc import Callable

import pytest

from sluicegate.gateway.upstream.resolving import ResolutionFailed, Resolver, SystemResolver
from tests.support.table_resolver import TableResolver

pytestmark = pytest.mark.anyio

# No resolver asks the network for this: a label is missing.
NO_NAME = "backends..example"


def table() -> Resolver:
    return TableResolver(localhost=["127.0.0.1", "::1"])


@pytest.fixture(params=[SystemResolver, table], ids=["system", "table"])
def resolver(request: pytest.FixtureRequest) -> Resolver:
    make: Callable[[], Resolver] = request.param
    return make()


async def test_a_name_leads_to_each_of_its_addresses_once(resolver: Resolver) -> None:
    found = await resolver.addresses("localhost")

    assert "127.0.0.1" in found
    assert len(set(found)) == len(found)


async def test_a_name_without_addresses_is_a_failure_that_names_it(resolver: Resolver) -> None:
    with pytest.raises(ResolutionFailed, match=NO_NAME):
        await resolver.addresses(NO_NAME)


async def test_whoever_asks_may_go_away_and_others_are_answered(resolver: Resolver) -> None:
    asking = [asyncio.create_task(resolver.addresses("localhost")) for _ in range(3)]
    await asyncio.wait(set(asking), timeout=0)  # they begin
    asking[0].cancel()

    found = await asyncio.gather(*asking, return_exceptions=True)

    assert "127.0.0.1" in (await asking[1])
    assert set(found[1:]) == {await asking[2]}
