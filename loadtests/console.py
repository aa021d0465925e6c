"""Measures each page of the console over a ledger of many tenants and a fleet of many backends.

Each tenant has used a model on each day of a year.

The operators' listener runs in this process, beside stub backends, a real Valkey and the client: a
page's time includes waiting for what these do. Workers' reports and metric files are made up.
"""

import asyncio
import gc
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final

import httpx
import msgspec
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import mmap_key

from gateway.admin.operator_directory import OperatorDirectory
from gateway.admin.serve import serve_admin
from gateway.console.console import Console
from gateway.console.pages import PAGES
from gateway.ledger.ledger import Ledger
from gateway.ledger.types import KeySpec
from gateway.ledger.usage_marks import DAY
from gateway.redis.client import connect
from gateway.runtime.control import Control
from gateway.settings import Settings
from gateway.telemetry.metric_files import MetricFile
from loadtests.harness.ports import free_port
from loadtests.harness.stub_backend import StubBackend, stub_model
from loadtests.harness.valkey import Valkey

LIMIT: Final = 0.3
"""Seconds that no page may take."""
_KEY = "admin-bench-key-0123456789"
_REGIONS = ("eu", "us", "ap", "sa")
_MODELS = 40
_DAYS = 365
_WORKERS = 4


class PageTime(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds that a page took, by request, and its size."""

    path: str
    seconds: list[float]
    kib: float


def measure(*, tenants: int, backends: int, rounds: int) -> list[PageTime]:
    """Return the time of each page."""
    return asyncio.run(_measure(tenants=tenants, backends=backends, rounds=rounds))


def report(pages: list[PageTime]) -> str:
    """Return the table of the pages, the slowest first."""
    lines = ["| page | median | p95 | longest | KiB |", "|---|---|---|---|---|"]
    for page in sorted(pages, key=lambda page: -max(page.seconds)):
        times = sorted(page.seconds)
        p95 = times[min(len(times) - 1, round(0.95 * len(times)))]
        shown = (f"{each * 1e3:.0f} ms" for each in (statistics.median(times), p95, times[-1]))
        lines.append(f"| `{page.path}` | {' | '.join(shown)} | {page.kib:.0f} |")
    return "\n".join(lines)


async def _measure(*, tenants: int, backends: int, rounds: int) -> list[PageTime]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        valkey = stack.enter_context(Valkey())
        stubs = [
            await stack.enter_async_context(
                StubBackend(
                    backend_id=f"{_REGIONS[index % len(_REGIONS)]}-{index}",
                    region=_REGIONS[index % len(_REGIONS)],
                )
            )
            for index in range(backends)
        ]
        settings = _settings(folder, valkey.url, stubs)
        _fill_ledger(settings, tenants)
        _write_metrics(settings.metrics_dir, stubs)
        # As the operators' process does: without stubs it has much less to collect, too.
        gc.collect()
        gc.freeze()
        client = await stack.enter_async_context(_listener(settings, stubs))
        paths = [*(page.path for page in PAGES), *await _more(client, tenants)]
        return [await _time(client, path, rounds) for path in paths]


def _settings(folder: Path, url: str, stubs: list[StubBackend]) -> Settings:
    config = folder / "config"
    config.mkdir()
    (folder / "metrics").mkdir()
    regions = [
        {
            "name": region,
            "pools": [
                {
                    "backends": [
                        {"id": stub.backend_id, "url": stub.url}
                        for stub in stubs
                        if stub.region == region
                    ]
                }
            ],
        }
        for region in _REGIONS
    ]
    (config / "gateway.yaml").write_text(yaml.safe_dump({"regions": regions}))
    return Settings(
        data_dir=folder,
        config=config,
        admin_key=_KEY,
        state_url=url,
        cache_url=url,
        admin_port=free_port(),
    )


def _fill_ledger(settings: Settings, tenants: int) -> None:
    specs = [
        KeySpec(tenant=f"tenant-{number:05}", key_hash=f"{number:064x}", name="bench")
        for number in range(tenants)
    ]
    with Ledger(settings.ledger) as ledger:
        for first in range(0, tenants, 1000):
            ledger.accounts.create_keys(specs[first : first + 1000], new_tenants=True)
        _fill_usage(settings.ledger, tenants)
        _add_up(ledger)


def _fill_usage(url: str, tenants: int) -> None:
    """Write a year of usage, as the roll-up leaves it: a row for each tenant and day."""
    names = (
        "id, tenant, time, key, model, task, status, items, hit, collapsed, computed, failed, rows,"
        " tokens, region, revision, code, requests, batch"
    )
    query = (
        "WITH RECURSIVE tenants(n) AS"  # noqa: S608 - of constants
        " (SELECT 0 UNION ALL SELECT n + 1 FROM tenants WHERE n + 1 < :tenants),"
        " days(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM days WHERE n + 1 < :days)"
        f" INSERT INTO usage_events ({names})"
        " SELECT printf('rollup-%d-%05d', days.n, tenants.n), printf('tenant-%05d', tenants.n),"
        " (:first + days.n) * :day, 'key', 'm-' || (tenants.n % :models), 'classify', 200,"
        " 100 + tenants.n, 60, 0, 40 + tenants.n, 0, 40 + tenants.n, 500, 'eu', 'abc', '', 20, 0"
        " FROM days, tenants"
    )
    today = time.time_ns() // DAY
    values = {"tenants": tenants, "models": _MODELS, "days": _DAYS, "day": DAY}
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute(query, values | {"first": today - _DAYS + 1})
        database.commit()


def _add_up(ledger: Ledger) -> None:
    """Do what billing does in its idle time."""
    before = time.time_ns() - 3 * DAY
    for _ in range(_DAYS):  # each step scans a hundred hours
        ledger.rollup.add_up(before=before, limit=1000)
    while ledger.rollup.sum_day():
        pass


def _write_metrics(folder: Path, stubs: list[StubBackend]) -> None:
    """Write what four workers would, for each model and backend."""
    for worker in range(_WORKERS):
        counters = MetricFile(folder / f"counter_{worker + 1}.db")
        for model in range(_MODELS):
            for status in ("200", "429", "503"):
                labels = (["route", "model", "status"], ["/v1/classify", f"m-{model}", status])
                counters.write(_key("requests", "requests_total", *labels), 1000.0)
        for stub in stubs:
            for outcome in ("ok", "refused", "failed", "given_up"):
                labels = (
                    ["region", "endpoint", "outcome"],
                    [stub.region, stub.backend_id, outcome],
                )
                counters.write(_key("endpoint_calls", "endpoint_calls_total", *labels), 100.0)
        counters.close()
        gauges = MetricFile(folder / f"gauge_min_{worker + 1}.db")
        for stub in stubs:
            endpoint = (["region", "endpoint"], [stub.region, stub.backend_id])
            gauges.write(_key("endpoint_up", "endpoint_up", *endpoint), 1.0)
        gauges.close()


def _key(metric: str, sample: str, names: list[str], values: list[str]) -> str:
    key: str = mmap_key(f"sluicegate_{metric}", f"sluicegate_{sample}", names, values, "")
    return key


@asynccontextmanager
async def _listener(
    settings: Settings, stubs: list[StubBackend]
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve the operators' listener, and return a client that has logged in."""

    def console(directory: OperatorDirectory) -> Console:
        return Console(settings=settings, directory=directory)

    stop = asyncio.Event()
    state = connect(settings.state_url, timeout=5.0)
    url = f"http://127.0.0.1:{settings.admin_port}"
    async with asyncio.TaskGroup() as tasks:
        registry = CollectorRegistry()
        tasks.create_task(serve_admin(settings, stop=stop, registry=registry, extend=console))
        reports = tasks.create_task(_report(Control(state), list(_reports(stubs))))
        async with httpx.AsyncClient(base_url=url, headers={"origin": url}, timeout=30) as client:
            await _log_in(client)
            yield client
        stop.set()
        reports.cancel()
    await state.aclose()


async def _log_in(client: httpx.AsyncClient) -> None:
    form = await _form(client)
    token = form.text.partition('name="csrf" value="')[2].partition('"')[0]
    await client.post("/console/login", data={"csrf": token, "key": _KEY})


async def _form(client: httpx.AsyncClient) -> httpx.Response:
    while True:
        try:
            return await client.get("/console/login")
        except httpx.TransportError:  # it starts
            await asyncio.sleep(0.05)


def _reports(stubs: list[StubBackend]) -> Iterator[tuple[str, bytes]]:
    models = {f"m-{number}": f"{number:012x}" for number in range(_MODELS)} | {"stub": "a" * 12}
    for worker in range(_WORKERS):
        fleet = [
            {
                "backend": stub.backend_id,
                "region": stub.region,
                "url": stub.url,
                "health": "ready",
                "models": models,
                "share": 1.0,
                "finish_time": 0.01,
            }
            for stub in stubs
        ]
        yield f"worker-{worker}", msgspec.json.encode({"fleet": fleet})


async def _report(control: Control, reports: list[tuple[str, bytes]]) -> None:
    while True:
        for worker, text in reports:
            await control.heartbeat(worker, text)
        await asyncio.sleep(1.0)


async def _more(client: httpx.AsyncClient, tenants: int) -> list[str]:
    """Return paths that no navigation has: parts of pages, pages further on, searches."""
    model = stub_model().name
    paths = [
        *("/console/overview/history", "/console/backends?page=2", "/console/backends?q=eu-1"),
        *("/console/models?q=m-1", f"/console/models/{model}", f"/console/models/{model}/arms"),
        *(f"/console/usage/figures?span={span}&by=tenant" for span in ("7d", "30d", "365d")),
        *("/console/usage/figures?span=365d", "/console/usage/figures?span=365d&model=m-1"),
        f"/console/usage/figures?span=365d&tenant=tenant-{tenants // 2:05}",
        *("/console/tenants?page=40", f"/console/tenants/tenant-{tenants // 2:05}"),
    ]
    found = [(path, (await client.get(path)).status_code) for path in paths]
    return [path for path, status in found if status == httpx.codes.OK]


async def _time(client: httpx.AsyncClient, path: str, rounds: int) -> PageTime:
    seconds = []
    content = b""
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        response = await client.get(path, follow_redirects=False)
        seconds.append(time.perf_counter() - begun)
        if response.status_code != httpx.codes.OK:
            message = f"{path}: {response.status_code}"
            raise RuntimeError(message)
        content = response.content
    return PageTime(path=path, seconds=seconds[1:], kib=len(content) / 1024)
