"""The operators' listener on a real Valkey and a SQLite ledger, and a worker that follows."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from testing.ports import free_port
from testing.valkey import Valkey
from tests.support import operators_listener
from tests.support.admin import KEY, client_of

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
        admin_port=free_port(),
    )


@pytest.fixture
async def admin(
    settings: Settings, redis: Redis, ledger: Ledger
) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(settings, redis, ledger) as client:
        yield client


@pytest.fixture
async def worker(settings: Settings, redis: Redis) -> AsyncIterator[RuntimeStore]:
    """A worker that follows, and reports what a gateway's does."""
    store = RuntimeStore(await first_runtime(redis, settings))
    fleet = [
        {"backend": "eu-0", "health": "ready"},
        {
            "backend": "us@10.0.0.7",
            "health": "ready",
            "ejected_for": 0.0,
            "url": "http://10.0.0.7:8100",
            "dns": "backends.us:8100",
        },
    ]
    report = msgspec.json.encode({"cache": {"hits": 3}, "fleet": fleet})
    async with RuntimeFollower(
        store=store, control=Control(redis), settings=settings, report=lambda: report, poll=0.05
    ):
        yield store
