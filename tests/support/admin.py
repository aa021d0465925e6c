"""Calls the operators' listener in this process, without a socket."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
from redis.asyncio import Redis

from sluicegate.gateway.admin.app import build_admin
from sluicegate.gateway.admin.extension import Extend, no_extension
from sluicegate.gateway.admin.operator_directory import OperatorAuthenticator, OperatorDirectory
from sluicegate.gateway.api.application import Application
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.backend_calls import BackendCalls
from sluicegate.gateway.operations.operator_keys import OperatorKeys
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.connect import open_client
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.recovery import LedgerRecovery
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.upstream.base import BackendClient
from sluicegate.gateway.upstream.http import HttpBackendClient

KEY = "the-admin-key-0123456789"
AUTHORIZATION = {"authorization": f"Bearer {KEY}"}


@contextlib.asynccontextmanager
async def application_of(
    settings: Settings,
    redis: Redis,
    ledger: Ledger,
    backend_client: BackendClient | None = None,
    *,
    body_timeout: float = 30.0,
    authenticators: Sequence[OperatorAuthenticator] = (),
    extend: Extend = no_extension,
) -> AsyncIterator[Application]:
    control = Control(redis)
    recovery = LedgerRecovery(control=control, record=ledger.published, region=settings.region)
    calls = backend_client or HttpBackendClient()
    active = ActiveDocumentReader(control=control, settings=settings)
    publisher = Publisher(
        control=control,
        ledger=ledger,
        settings=settings,
        clock=lambda: 0.0,
        recovery=recovery,
        labels=BackendCalls(control=control, active=active, client=calls).labels,
        workers_timeout=60.0,
    )
    cache = open_client(settings.cache_url, timeout=2.0, slow=2.0)
    operator_keys = OperatorKeys(store=ledger.operators)
    await operator_keys.refresh()
    directory = OperatorDirectory(
        admin_keys=[settings.admin_key],
        metrics_keys=[settings.metrics_key],
        authenticators=[operator_keys, *authenticators],
    )
    yield build_admin(
        settings=settings,
        control=control,
        cache_redis=cache,
        ledger=ledger,
        publisher=publisher,
        recovery=recovery,
        backend_client=calls,
        operator_keys=operator_keys,
        directory=directory,
        body_timeout=body_timeout,
        extensions=extend(directory).routers,
    )
    await cache.aclose()


@contextlib.asynccontextmanager
async def client_of(
    settings: Settings,
    redis: Redis,
    ledger: Ledger,
    backend_client: BackendClient | None = None,
    *,
    body_timeout: float = 30.0,
    authenticators: Sequence[OperatorAuthenticator] = (),
    extend: Extend = no_extension,
) -> AsyncIterator[httpx.AsyncClient]:
    async with application_of(
        settings,
        redis,
        ledger,
        backend_client,
        body_timeout=body_timeout,
        authenticators=authenticators,
        extend=extend,
    ) as app:
        transport = httpx.ASGITransport(app=app)
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
