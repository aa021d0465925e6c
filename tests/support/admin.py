"""Calls the operators' listener in this process, without a socket."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from redis.asyncio import Redis

from gateway.admin.app import build_admin
from gateway.admin.publishing import Publisher
from gateway.api.application import Application
from gateway.ledger.ledger import Ledger
from gateway.redis.connect import open_client
from gateway.runtime.control import Control
from gateway.runtime.recovery import LedgerRecovery
from gateway.settings import Settings

KEY = "the-admin-key-0123456789"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}


@contextlib.asynccontextmanager
async def application_of(
    settings: Settings, redis: Redis, ledger: Ledger, *, body_timeout: float = 30.0
) -> AsyncIterator[Application]:
    control = Control(redis)
    recovery = LedgerRecovery(control=control, record=ledger.published, region=settings.region)
    publisher = Publisher(
        control=control,
        ledger=ledger,
        settings=settings,
        clock=lambda: 0.0,
        recovery=recovery,
        workers_timeout=60.0,
    )
    cache = open_client(settings.cache_url, timeout=2.0, slow=2.0)
    yield build_admin(
        settings=settings,
        control=control,
        cache_redis=cache,
        ledger=ledger,
        publisher=publisher,
        recovery=recovery,
        body_timeout=body_timeout,
    )
    await cache.aclose()


@contextlib.asynccontextmanager
async def client_of(
    settings: Settings, redis: Redis, ledger: Ledger, *, body_timeout: float = 30.0
) -> AsyncIterator[httpx.AsyncClient]:
    async with application_of(settings, redis, ledger, body_timeout=body_timeout) as app:
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]  # as uvicorn's
        async with httpx.AsyncClient(transport=transport, base_url="http://admin") as client:
            client.headers.update(AUTHORIZATION)
            yield client


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem, which must be one."""
    problem: dict[str, Any] = response.json()
    assert (response.status_code, problem["code"]) == (status, code), problem
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"] == problem["request_id"]
    return problem
