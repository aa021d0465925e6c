"""A ledger whose primary fails is found again on its standby, and has everything once.

`make faults TOPOLOGY=namespaces` does this under load, with four gateways.
"""

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import exc, make_url

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.postgresql import make_engine
from sluicegate.gateway.ledger.types import EventBlock
from testing.postgresql import PostgreSQL, PostgreSQLPair, programs
from tests.support.events import make_event
from tests.support.ledgers import sums

pytestmark = [pytest.mark.anyio, pytest.mark.system]
_FIRST = EventBlock(log_id="w", first=1, last=50, events=[make_event(n) for n in range(50)])
_SECOND = EventBlock(log_id="w", first=51, last=99, events=[make_event(n) for n in range(51, 100)])


@pytest.fixture(scope="module")
def pair() -> Iterator[PostgreSQLPair]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (make install-system)")
    with PostgreSQLPair() as running:
        yield running


async def test_a_killed_primary_loses_no_event_and_none_is_counted_twice(
    pair: PostgreSQLPair,
) -> None:
    with Ledger.create(pair.url) as ledger:
        ledger.recorder.record([_FIRST])
        ledger.accounts.create_tenant("before")
        pair.primary.kill()
        with pytest.raises(DependencyUnavailable):
            ledger.recorder.record([_SECOND])
        with pytest.raises(DependencyUnavailable):
            ledger.accounts.create_tenant("after")

        pair.promote()
        again = ledger.recorder.record([_FIRST, _SECOND])
        ledger.accounts.create_tenant("after")

        assert (again.counted, again.duplicates) == (49, 50)
        assert sums(ledger).events == 99
        assert {tenant.id for tenant in ledger.accounts.tenants()} >= {"before", "after"}


async def test_a_primary_that_answers_nothing_is_left_long_before_a_statement_ends(
    pair: PostgreSQLPair,
) -> None:
    pair.rejoin()
    with Ledger.create(pair.url, timeout=300.0) as ledger:
        ledger.accounts.tenants()
        frozen = pair.primary
        frozen.pause()
        pair.promote()

        async with asyncio.timeout(60):
            await asyncio.to_thread(ledger.accounts.create_tenant, "later")

        assert "later" in {tenant.id for tenant in ledger.accounts.tenants()}
        frozen.kill()


async def test_a_change_that_no_standby_has_is_not_confirmed(pair: PostgreSQLPair) -> None:
    """The time-out of statements does not end the wait for the standby with success."""
    pair.rejoin()
    with Ledger.create(pair.url, timeout=0.5) as ledger:
        ledger.accounts.tenants()
        pair.standby.pause()

        with pytest.raises(DependencyUnavailable):
            ledger.accounts.create_tenant("unconfirmed")

        assert "unconfirmed" not in {tenant.id for tenant in ledger.accounts.tenants()}
        pair.standby.kill()


async def test_a_server_that_takes_no_writes_any_more_is_left(postgresql: PostgreSQL) -> None:
    """Behind an address that moves, a demoted primary keeps the connections that it had."""
    engine = make_engine(make_url(postgresql.database()), timeout=5.0)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET default_transaction_read_only = on")
        connection.commit()

    with pytest.raises(exc.InternalError, match="read-only"), engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE one (number int)")

    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE one (number int)")
    engine.dispose()
