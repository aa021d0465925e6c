"""Fixtures of tests of the operators' listener: a real Valkey and a SQLite ledger.

A `conftest.py` assigns those that it offers to names of its own, and has `settings`.
"""

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.settings import Settings
from testing.valkey import Valkey


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    """A server for the tests of a module, which empty it."""
    with Valkey() as running:
        yield running


@pytest.fixture
async def redis(settings: Settings) -> AsyncIterator[Redis]:
    """A client of the state Redis."""
    client = connect(settings.state_url, timeout=60.0)
    yield client
    await client.aclose()


@pytest.fixture
def ledger(settings: Settings) -> Iterator[Ledger]:
    """The ledger of the settings."""
    with Ledger.create(settings.ledger) as opened:
        yield opened
