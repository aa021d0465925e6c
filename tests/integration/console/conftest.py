"""The console on the operators' listener, on a real Valkey and a SQLite ledger."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.console.console import Console, ConsoleMetrics
from sluicegate.gateway.console.history import History
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings
from testing.valkey import Valkey
from tests.support import operators_listener
from tests.support.admin import KEY, client_of
from tests.support.clock import Clock
from tests.support.console import ModelStates, Viewers, log_in

valkey, redis = operators_listener.valkey, operators_listener.redis
ledger = operators_listener.ledger


@pytest.fixture
def settings(tmp_path: Path, valkey: Valkey) -> Settings:
    valkey.flush()
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "g.yaml").write_text("models:\n  m:\n    cache_ttl: 1\n")
    (tmp_path / "metrics").mkdir()
    return Settings(
        data_dir=tmp_path,
        config=folder,
        admin_key=KEY,
        state_url=valkey.url,
        cache_url=valkey.url,
    )


@pytest.fixture
def repository() -> ModelStates:
    return ModelStates()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(settings: Settings, clock: Clock) -> History:
    """What passed; nothing reads it beside the test."""
    return History(reader=ConsoleMetrics(settings), clock=clock)


@pytest.fixture
async def browser(
    settings: Settings,
    redis: Redis,
    ledger: Ledger,
    clock: Clock,
    repository: ModelStates,
    history: History,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps cookies and says where its requests come from, as browsers do."""

    def console(directory: OperatorDirectory) -> Console:
        return Console(settings=settings, directory=directory, clock=clock, history=history)

    viewers = (Viewers(),)
    async with client_of(
        settings, redis, ledger, repository, authenticators=viewers, extend=console
    ) as client:
        del client.headers["authorization"]
        client.headers["origin"] = "http://admin"
        yield client


@pytest.fixture
async def operator(browser: httpx.AsyncClient) -> httpx.AsyncClient:
    """The client, logged in with the admin key."""
    await log_in(browser, KEY)
    return browser
