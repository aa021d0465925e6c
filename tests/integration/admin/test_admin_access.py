"""The operators' listener: access, bodies, health, caches, regions, metrics."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.mmap_dict import mmap_key
from redis.asyncio import Redis

from sluicegate.gateway.errors import DependencyUnavailable
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.regional_limits.values import BucketDemand, ShareReport
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.runtime.store import RuntimeStore
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.telemetry.metric_files import ReservedDict
from testing.waiting import WAIT_LIMIT
from tests.support.admin import AUTHORIZATION, KEY, application_of, client_of, refused

pytestmark = pytest.mark.anyio


async def test_nothing_is_told_without_the_admin_key(admin: httpx.AsyncClient) -> None:
    for given in ["", "Bearer ", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x"]:
        for path in ["/admin/config", "/admin/keys", "/admin/cache", "/metrics", "/admin/audit"]:
            answer = await admin.get(path, headers={"authorization": given})

            refused(answer, 401, "authentication_failed")
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_several_keys_are_none(admin: httpx.AsyncClient) -> None:
    del admin.headers["authorization"]
    right = ("authorization", f"Bearer {KEY}")

    for lines in ([right, right], [("authorization", "Basic YTpi"), right]):
        refused(await admin.get("/admin/keys", headers=lines), 401, "authentication_failed")
    assert (await admin.get("/admin/keys", headers=[right])).status_code == 200


async def test_without_an_admin_key_nobody_is_admin(
    settings: Settings, redis: Redis, ledger: Ledger
) -> None:
    keyless = msgspec.structs.replace(settings, admin_key="")
    async with client_of(keyless, redis, ledger) as client:
        answer = await client.get("/admin/keys", headers={"authorization": "Bearer "})

    refused(answer, 401, "authentication_failed")


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/admin/config"), ("POST", "/admin/config/rollback"), ("POST", "/admin/tenants")],
)
async def test_a_body_that_does_not_arrive_in_time_is_answered_408(
    settings: Settings, redis: Redis, ledger: Ledger, method: str, path: str
) -> None:
    async def part_of_a_body() -> AsyncIterator[bytes]:
        yield b" "
        await asyncio.get_running_loop().create_future()

    async with client_of(settings, redis, ledger, body_timeout=0.1) as client:
        async with asyncio.timeout(WAIT_LIMIT):
            answer = await client.request(method, path, content=part_of_a_body())

    refused(answer, 408, "request_timeout")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path"),
    [("PUT", "/admin/config"), ("POST", "/admin/config/rollback"), ("POST", "/admin/tenants")],
)
async def test_a_client_that_leaves_before_its_body_has_arrived_is_no_fault_of_the_gateway(
    settings: Settings,
    redis: Redis,
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
    method: str,
    path: str,
) -> None:
    received = iter(
        [{"type": "http.request", "body": b" ", "more_body": True}, {"type": "http.disconnect"}]
    )
    sent: list[Any] = []
    headers = [(name.encode(), value.encode()) for name, value in AUTHORIZATION.items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": headers, "http_version": "1.1", "scheme": "http"}

    async def receive() -> Any:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    async with application_of(settings, redis, ledger) as app:
        await app(scope, receive, send)

    assert sent[0]["status"] == 400
    assert caplog.records == []


async def test_health_needs_no_key(admin: httpx.AsyncClient) -> None:
    live = await admin.get("/health/live", headers={"authorization": ""})
    ready = await admin.get("/health/ready", headers={"authorization": ""})

    assert (live.status_code, ready.json()) == (200, {"ready": True, "missing": [], "degraded": []})


async def test_readiness_names_what_is_missing(settings: Settings, ledger: Ledger) -> None:
    away = connect("unix:///nowhere", timeout=0.2)
    alone = msgspec.structs.replace(settings, cache_url="unix:///nowhere")
    async with client_of(alone, away, ledger) as client:
        ready = await client.get("/health/ready")
        config = await client.get("/admin/config")
    await away.aclose()

    assert ready.status_code == 503
    assert ready.json()["degraded"] == ["cache_redis: cannot be reached"]
    assert ready.json()["missing"][0].startswith("state_redis: ")
    assert refused(config, 503, "dependency_unavailable")["detail"]
    assert config.headers["retry-after"] == "1"


async def test_readiness_names_what_is_degraded_to_those_who_may_know(
    admin: httpx.AsyncClient, settings: Settings
) -> None:
    name = "sluicegate_data_disk_free_bytes"
    gauges = ReservedDict(settings.metrics_dir / "gauge_min_1.db")
    gauges.write_value(mmap_key(name, name, [], [], ""), 0.0)
    gauges.close()

    known = await admin.get("/health/ready")
    stranger = await admin.get("/health/ready", headers={"authorization": ""})

    assert (known.status_code, known.json()["ready"], known.json()["missing"]) == (200, True, [])
    names = [line.partition(":")[0] for line in known.json()["degraded"]]
    assert names == ["data_disk", "workers"]
    assert stranger.json()["degraded"] == []


async def test_readiness_names_a_wrong_clock_to_operators(
    admin: httpx.AsyncClient, settings: Settings
) -> None:
    redis = connect(settings.state_url, timeout=30.0)
    skews = {"clock": {"state_redis": 3600.0, "ledger": 0.5}}
    await Control(redis).heartbeat("gateway-1:ab:0", msgspec.json.encode(skews))
    await redis.aclose()

    known = await admin.get("/health/ready")
    stranger = await admin.get("/health/ready", headers={"authorization": ""})

    (clock,) = known.json()["degraded"]
    assert all(word in clock for word in ("clock", "gateway-1:ab:0", "state_redis", "3600.0 s"))
    assert stranger.json()["degraded"] == []


@pytest.mark.usefixtures("worker")
async def test_readiness_names_no_worker_while_one_reports(admin: httpx.AsyncClient) -> None:
    ready = await admin.get("/health/ready")

    assert ready.json()["degraded"] == []


async def test_a_route_that_does_not_exist_is_a_problem(admin: httpx.AsyncClient) -> None:
    refused(await admin.get("/admin/nothing"), 404, "not_found")
    refused(await admin.delete("/admin/config"), 405, "method_not_allowed")


async def test_a_purge_is_live_in_every_worker_when_it_returns(
    admin: httpx.AsyncClient, worker: RuntimeStore, redis: Redis
) -> None:
    answer = await admin.post("/admin/cache/purge", json={"model": "m"})

    assert (answer.status_code, answer.json()["live"]) == (200, True)
    assert worker.current.epochs == await Control(redis).epochs()
    assert set(worker.current.epochs) == {"model:m"}


@pytest.mark.parametrize(
    ("path", "body"),
    [("/admin/cache/purge", {"model": "m"}), ("/admin/models/reload", None)],
)
async def test_what_cannot_be_in_the_audit_does_not_happen(
    settings: Settings, redis: Redis, tmp_path: Path, path: str, body: dict[str, str] | None
) -> None:
    (tmp_path / "no-folder").write_text("")
    before = await Control(redis).versions()
    with Ledger(f"sqlite:///{tmp_path / 'no-folder' / 'ledger.db'}") as away:
        async with client_of(settings, redis, away) as client:
            answer = await client.post(path, json=body)

    refused(answer, 503, "dependency_unavailable")
    assert await Control(redis).versions() == before


async def test_shares_of_limits_are_shown(admin: httpx.AsyncClient, ledger: Ledger) -> None:
    for worker in ("0", "1"):
        report = ShareReport(
            region="eu",
            worker=worker,
            seen=0,
            demand={
                "rl:{acme}:t:minute": BucketDemand(units=30),
                "rl:{other}:t:minute": BucketDemand(units=30),
            },
        )
        ledger.shares.report(report, lease=30.0, longest=60.0)

    every = (await admin.get("/admin/regions/shares")).json()
    ledger.accounts.create_tenant("acme")
    of_one = (await admin.get("/admin/regions/shares", params={"tenant": "acme"})).json()

    (region,) = every["regions"]
    assert (region["name"], region["workers"]) == ("eu", 2)
    assert {row["bucket"] for row in every["shares"]} > {"", "rl:{acme}:t:minute"}
    (row,) = of_one["shares"]
    assert (row["region"], row["share"], row["held"]) == ("eu", 1.0, 1.0)
    assert row["demand"] > 0.0  # it fades with the time that the machine takes


async def test_caches_and_regions_are_shown_as_workers_see_them(
    admin: httpx.AsyncClient, worker: RuntimeStore, settings: Settings
) -> None:
    backend = '{id: eu-0, url: "http://h:1"}'
    (settings.config / "r.yaml").write_text(
        f"regions: [{{name: eu, pools: [{{backends: [{backend}]}}]}}]"
    )
    await admin.post("/admin/config/reload")

    cache = (await admin.get("/admin/cache")).json()
    regions = (await admin.get("/admin/regions")).json()["regions"]

    assert list(cache["workers"].values()) == [{"hits": 3}]
    assert cache["redis"]["used_memory"] > 0
    (shown,) = regions[0]["backends"]
    assert (shown["id"], shown["url"]) == ("eu-0", "http://h:1")
    assert [view["health"] for view in shown["workers"].values()] == ["ready"]


async def test_a_backend_is_drained_and_restored_by_its_place(
    admin: httpx.AsyncClient, worker: RuntimeStore, settings: Settings
) -> None:
    backend = '{id: eu-0, url: "http://h:1"}'
    (settings.config / "r.yaml").write_text(
        f"regions: [{{name: eu, pools: [{{backends: [{backend}]}}]}}]"
    )
    await admin.post("/admin/config/reload")

    drained = await admin.post("/admin/regions/eu/backends/eu-0/drain")
    shown = (await admin.get("/admin/regions")).json()["regions"][0]["backends"][0]
    restored = await admin.post("/admin/regions/eu/backends/eu-0/restore")
    elsewhere = await admin.post("/admin/regions/us/backends/eu-0/drain")

    assert (drained.status_code, drained.json()["drained"], drained.json()["live"]) == (
        200,
        True,
        True,
    )
    assert shown["drained"]
    assert (restored.status_code, restored.json()["drained"]) == (200, False)
    refused(elsewhere, 404, "not_found")


@pytest.mark.parametrize("change", ["drain", "restore"])
async def test_a_change_that_was_made_is_not_refused_where_the_ledger_has_left_meanwhile(
    admin: httpx.AsyncClient,
    worker: RuntimeStore,
    settings: Settings,
    redis: Redis,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    """What the ledger lacks of it is kept by who compares both each second."""
    backend = '{id: eu-0, url: "http://h:1"}'
    (settings.config / "r.yaml").write_text(
        f"regions: [{{name: eu, pools: [{{backends: [{backend}]}}]}}]"
    )
    await admin.post("/admin/config/reload")

    def away(*_: object) -> None:
        raise DependencyUnavailable("the ledger cannot be reached")

    monkeypatch.setattr(ledger.published, "keep_drained", away)

    answer = await admin.post(f"/admin/regions/eu/backends/eu-0/{change}")

    assert (answer.status_code, answer.json()["live"]) == (200, True)
    assert await Control(redis).drained() == ({"eu-0"} if change == "drain" else set())


async def test_backends_of_a_name_are_shown_and_drained_one_by_one_or_all_together(
    admin: httpx.AsyncClient, worker: RuntimeStore, settings: Settings, redis: Redis
) -> None:
    name = '{id: us, dns: "backends.us:8100"}'
    (settings.config / "r.yaml").write_text(
        f"regions: [{{name: us, pools: [{{backends: [{name}]}}]}}]"
    )
    await admin.post("/admin/config/reload")

    (found,) = (await admin.get("/admin/regions")).json()["regions"][0]["backends"]
    one = await admin.post("/admin/regions/us/backends/us@10.0.0.7/drain")
    unknown = await admin.post("/admin/regions/us/backends/us@10.0.0.8/drain")
    await admin.post("/admin/regions/us/backends/us@10.0.0.7/restore")
    await Control(redis).drain("us@10.0.0.9")
    left = await admin.post("/admin/regions/us/backends/us@10.0.0.9/restore")
    everything = await admin.post("/admin/regions/us/backends/us/drain")
    (shown,) = (await admin.get("/admin/regions")).json()["regions"][0]["backends"]

    assert (found["id"], found["url"], found["dns"]) == (
        "us@10.0.0.7",
        "http://10.0.0.7:8100",
        "backends.us:8100",
    )
    assert [view["health"] for view in found["workers"].values()] == ["ready"]
    assert (one.status_code, left.status_code, everything.status_code) == (200, 200, 200)
    assert shown["drained"]
    refused(unknown, 404, "not_found")


async def test_metrics_are_text_for_prometheus(admin: httpx.AsyncClient) -> None:
    answer = await admin.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")


async def test_methods_of_a_route_are_told(admin: httpx.AsyncClient) -> None:
    unknown = await admin.request("TRACE", "/admin/cache")
    allowed = await admin.request("OPTIONS", "/admin/config")

    refused(unknown, 405, "method_not_allowed")
    assert set(unknown.headers["allow"].split(", ")) == {"GET", "HEAD", "OPTIONS"}
    assert allowed.headers["allow"] == "GET, HEAD, OPTIONS, PUT"


async def test_what_is_wrong_with_a_body_is_said_of_the_body(admin: httpx.AsyncClient) -> None:
    unknown = await admin.post("/admin/tenants", json={"tenant": "acme"})
    shape = await admin.put("/admin/tenants/acme/limits", json={"limits": []})

    refused(unknown, 400, "invalid_request")
    assert "unknown field `tenant`" in unknown.json()["detail"]
    refused(shape, 400, "invalid_request")
    assert "Expected `array`, got `object`" in shape.json()["detail"]
