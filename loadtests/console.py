"""Measures each page of the console over a ledger of many tenants and a fleet of many backends.

Each tenant has used a model on each day of a year, and in each hour of the last seven days.

The operators' listener runs in this process, beside stub backends, a real Valkey and the client: a
page's time includes waiting for what these do. Workers' reports and metric files are made up.
"""

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import click
import httpx
import msgspec
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.mmap_dict import mmap_key

from gateway.admin.operator_directory import OperatorDirectory
from gateway.admin.serve import serve_admin
from gateway.console.console import Console
from gateway.console.pages import PAGES
from gateway.redis.client import connect
from gateway.runtime.control import Control
from gateway.settings import Settings
from gateway.telemetry.metric_files import MetricFile
from loadtests.console_ledger import MODELS, fill_ledger
from loadtests.generator import percentile
from loadtests.report import heading, print_table
from testing.ports import free_port
from testing.postgresql import PostgreSQL, programs
from testing.stub_backend import StubBackend, stub_model
from testing.valkey import Valkey

LIMIT: Final = 0.3
"""Seconds that no page may take."""
_KEY = "admin-bench-key-0123456789"
_REGIONS = ("eu", "us", "ap", "sa")
_SPANS = ("24h", "7d", "30d", "month", "365d")
_WORKERS = 4


class PageTime(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds that a page took, by request, and its size.

    `processor` is the processor time of this process, which other work on the machine changes less.
    """

    path: str
    seconds: list[float]
    processor: list[float]
    kib: float


@click.command()
@click.option("--tenants", default=4000)
@click.option("--backends", default=200)
@click.option("--rounds", default=20, help="Requests for each page.")
@click.option("--postgresql", is_flag=True, help="The ledger is in PostgreSQL, not in SQLite.")
def measure(*, tenants: int, backends: int, rounds: int, postgresql: bool) -> None:
    """Measure the pages of the console; fail where one takes over 300 ms."""
    pages = times(tenants=tenants, backends=backends, rounds=rounds, postgresql=postgresql)
    heading("Pages of the console")
    columns = ("page", "median", "p95", "longest", "processor", "KiB")
    print_table(columns, map(_line, sorted(pages, key=lambda page: -max(page.seconds))))
    slow = [page.path for page in pages if max(page.seconds) > LIMIT]
    if slow:
        raise click.ClickException(f"over {LIMIT * 1e3:.0f} ms: {', '.join(slow)}")


def times(*, tenants: int, backends: int, rounds: int, postgresql: bool) -> list[PageTime]:
    """Return the time of each page, with the ledger in SQLite or `postgresql`."""
    with ExitStack() as stack:
        ledger_url = ""
        if postgresql:
            folder = programs()
            if folder is None:
                raise RuntimeError("PostgreSQL is not installed (make install-system)")
            ledger_url = stack.enter_context(PostgreSQL(folder)).database()
        measured = _measure(
            tenants=tenants, backends=backends, rounds=rounds, ledger_url=ledger_url
        )
        return asyncio.run(measured)


def _line(page: PageTime) -> tuple[str, ...]:
    times = sorted(page.seconds)
    processor = statistics.median(page.processor)
    figures = (statistics.median(times), percentile(times, 0.95), times[-1], processor)
    return (f"`{page.path}`", *(f"{each * 1e3:.0f} ms" for each in figures), f"{page.kib:.0f}")


async def _measure(*, tenants: int, backends: int, rounds: int, ledger_url: str) -> list[PageTime]:
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
        settings = _settings(folder, valkey.url, stubs, ledger_url)
        await asyncio.to_thread(fill_ledger, settings.ledger, tenants)
        _write_metrics(settings.metrics_dir, stubs)
        # As the operators' process does: without stubs it has much less to collect, too.
        gc.collect()
        gc.freeze()
        client = await stack.enter_async_context(_listener(settings, stubs))
        paths = [*(page.path for page in PAGES), *await _more(client, tenants)]
        return [await _time(client, path, rounds) for path in paths]


def _settings(folder: Path, url: str, stubs: list[StubBackend], ledger_url: str) -> Settings:
    config = folder / "config"
    config.mkdir()
    (folder / "metrics").mkdir()
    regions = []
    for region in _REGIONS:
        backends = [{"id": s.backend_id, "url": s.url} for s in stubs if s.region == region]
        regions.append({"name": region, "pools": [{"backends": backends}]})
    (config / "gateway.yaml").write_text(yaml.safe_dump({"regions": regions}))
    return Settings(
        data_dir=folder,
        config=config,
        admin_key=_KEY,
        ledger_url=ledger_url,
        state_url=url,
        cache_url=url,
        admin_port=free_port(),
    )


def _write_metrics(folder: Path, stubs: list[StubBackend]) -> None:
    """Write the metric files of four workers, for each model and backend."""
    for worker in range(_WORKERS):
        counters = MetricFile(folder / f"counter_{worker + 1}.db")
        for model in range(MODELS):
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
    models = {f"m-{number}": f"{number:012x}" for number in range(MODELS)} | {"stub": "a" * 12}
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
    model, tenant = stub_model().name, f"tenant-{tenants // 2:05}"
    choices = ("&by=model", "&by=tenant", "&model=m-1", f"&tenant={tenant}")
    paths = [
        *("/console/overview/history", "/console/backends?page=2", "/console/backends?q=eu-1"),
        *("/console/models?q=m-1", f"/console/models/{model}", f"/console/models/{model}/arms"),
        *(f"/console/usage/figures?span={span}{which}" for span in _SPANS for which in choices),
        *("/console/tenants?page=40", f"/console/tenants/{tenant}"),
    ]
    found = [(path, (await client.get(path)).status_code) for path in paths]
    return [path for path, status in found if status == httpx.codes.OK]


async def _time(client: httpx.AsyncClient, path: str, rounds: int) -> PageTime:
    seconds, processor = [], []
    content = b""
    for _ in range(rounds + 1):
        begun, used = time.perf_counter(), time.process_time()
        response = await client.get(path, follow_redirects=False)
        seconds.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
        if response.status_code != httpx.codes.OK:
            message = f"{path}: {response.status_code}"
            raise RuntimeError(message)
        content = response.content
    kib = len(content) / 1024
    return PageTime(path=path, seconds=seconds[1:], processor=processor[1:], kib=kib)
