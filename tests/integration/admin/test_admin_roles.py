"""Which operators may use which routes of their listener."""

import asyncio
import re
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.routes import HTTPRoute
from redis.asyncio import Redis

from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.settings import Settings
from tests.support.admin import application_of, client_of, refused

pytestmark = pytest.mark.anyio
_METRICS_KEY = "the-metrics-key-0123456789"
_PUBLIC = {"/health/live", "/health/ready", "/openapi.json", "/docs", "/docs/scalar.js"}


async def test_every_route_states_its_role_or_is_public(
    settings: Settings, redis: Redis, ledger: Ledger
) -> None:
    async with application_of(settings, redis, ledger) as app:
        handlers = list(_handlers(app))

    silent = {
        path
        for path, handler in handlers
        if not (isinstance(handler.opt.get("role"), Role) or handler.opt.get("public"))
    }
    public = {path for path, handler in handlers if handler.opt.get("public")}
    assert silent == set()
    assert {path for path in public if not path.startswith("/console")} == _PUBLIC


async def test_prometheus_reads_metrics_and_nothing_else(
    settings: Settings, redis: Redis, ledger: Ledger
) -> None:
    own = msgspec.structs.replace(settings, metrics_key=_METRICS_KEY)
    async with client_of(own, redis, ledger) as client:
        client.headers["authorization"] = f"Bearer {_METRICS_KEY}"
        metrics = await client.get("/metrics")
        others = [
            await client.get("/admin/config"),
            await client.get("/admin/tenants"),
            await client.post("/admin/config/reload"),
            await client.put("/admin/config", content=b"{}"),
        ]
        ready = await client.get("/health/ready")

    assert metrics.status_code == 200
    details = [refused(answer, 403, "permission_denied")["detail"] for answer in others]
    assert re.findall("`(.*?)`", details[0])[:3] == ["viewer", "metrics", "metrics"]
    assert ready.status_code == 200


async def test_a_key_of_metrics_that_may_do_everything_is_refused_and_not_shown(
    settings: Settings,
) -> None:
    own = msgspec.structs.replace(settings, metrics_key=settings.admin_key)

    with pytest.raises(ConfigurationError, match="SLUICEGATE_METRICS_KEY") as caught:
        await serve_admin(own, stop=asyncio.Event())

    assert settings.admin_key not in caught.value.detail


async def test_every_operation_is_documented_with_its_role(admin: httpx.AsyncClient) -> None:
    paths = (await admin.get("/openapi.json")).json()["paths"]

    for path, operations in paths.items():
        for method, operation in operations.items():
            if operation.get("security") == []:
                continue
            assert operation["x-required-role"] in set(Role), (method, path)
            assert {"401", "403", "503"} <= operation["responses"].keys(), (method, path)


def _handlers(app: Litestar) -> Iterator[tuple[str, HTTPRouteHandler]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                if handler.http_methods - {"OPTIONS"}:
                    yield route.path_format, handler
