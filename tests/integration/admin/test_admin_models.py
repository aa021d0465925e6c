"""What the audit says of a reload of models."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest
from redis.asyncio import Redis

from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.follower import RuntimeFollower, first_runtime, identity
from sluicegate.gateway.runtime.models import ModelsFollower
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings

pytestmark = pytest.mark.anyio


class Backends:
    """Backends as a worker reports them; they have what is in `after` once it reloads."""

    def __init__(self, *after: dict[str, object]) -> None:
        self._after = after
        self._fleet: tuple[dict[str, object], ...] = tuple(
            {"backend": f"eu-{number}", "health": "ready", "models": {"judge": "a1", "tiny": "b1"}}
            for number in range(len(after))
        )

    async def reload(self) -> None:
        pairs = zip(self._fleet, self._after, strict=True)
        self._fleet = tuple(one | change for one, change in pairs)

    def report(self) -> bytes:
        return msgspec.json.encode({"fleet": self._fleet})


@asynccontextmanager
async def worker_of(settings: Settings, redis: Redis, backends: Backends) -> AsyncIterator[None]:
    models = ModelsFollower(
        control=Control(redis),
        worker=identity(settings),
        reload=backends.reload,
        report=backends.report,
    )
    follower = RuntimeFollower(
        store=RuntimeStore(await first_runtime(redis, settings)),
        control=Control(redis),
        settings=settings,
        report=backends.report,
        models_changed=models.on_version,
        poll=0.05,
    )
    async with models, follower:
        yield


async def audited_reload(admin: httpx.AsyncClient, status: int) -> list[tuple[str, str, object]]:
    """Reload the models, and return what the audit says of it, the first entry first."""
    answer = await admin.post("/admin/models/reload")
    assert answer.status_code == status
    entries = (await admin.get("/admin/audit", params={"kind": "models"})).json()["entries"]
    found = [(entry["action"], entry["subject"], entry["detail"]) for entry in entries]
    return found[::-1]


async def test_the_audit_names_the_revisions_that_a_reload_brought(
    admin: httpx.AsyncClient, settings: Settings, redis: Redis
) -> None:
    both: dict[str, object] = {"models": {"judge": "a2", "tiny": "b1"}}
    one: dict[str, object] = {"models": {"judge": "a2", "tiny": "b1", "new": "c1"}}

    async with worker_of(settings, redis, Backends(both, one)):
        first, *outcome = await audited_reload(admin, 200)

    assert first == ("models.reload", "", {})
    assert outcome == [
        ("models.reload.done", "judge", {"old": "a1", "new": "a2", "backends": 2}),
        ("models.reload.done", "new", {"old": None, "new": "c1", "backends": 1}),
    ]


async def test_the_audit_names_the_models_that_are_broken(
    admin: httpx.AsyncClient, settings: Settings, redis: Redis
) -> None:
    broken: dict[str, object] = {"problems": {"judge": "no graph"}}

    async with worker_of(settings, redis, Backends(broken, broken)):
        _, *outcome = await audited_reload(admin, 422)

    assert outcome == [
        ("models.reload.failed", "judge", {"problem": "no graph", "backends": 2}),
    ]


async def test_a_reload_that_brings_nothing_has_one_entry(
    admin: httpx.AsyncClient, settings: Settings, redis: Redis
) -> None:
    async with worker_of(settings, redis, Backends({})):
        entries = await audited_reload(admin, 200)

    assert entries == [("models.reload", "", {})]
