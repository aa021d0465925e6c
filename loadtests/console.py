"""Measures how long each page of the console takes with many tenants and many backends.

Each tenant has used a model on each day of a year, and in each hour of the last seven days. A real
gateway serves the pages. This process runs the client and the stub backends, which the gateway's
workers probe rarely.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import click
import httpx
import msgspec
import sqlalchemy
from sqlalchemy import Connection

from loadtests.gateway import Gateway, add_tenants
from loadtests.generator import percentile, run_closed
from loadtests.machine import processor_seconds
from loadtests.report import show
from sluicegate.gateway.console.pages import PAGES
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.ledger.schema import IN_TOTALS
from sluicegate.gateway.ledger.types import KeySpec
from sluicegate.gateway.ledger.usage_fields import SUMMED
from sluicegate.gateway.ledger.usage_marks import DAY, HOUR, read_marks
from sluicegate.gateway.ledger.usage_totals import ALL_TENANTS, HOURS_OF_DAY, KEPT, LENGTHS
from testing.loopback import is_answered
from testing.postgresql import PostgreSQL, programs
from testing.stub_backend import StubBackend, stub_model
from testing.valkey import Valkey
from testing.waiting import wait_until

_LIMIT = 300.0
"""The most milliseconds that a page may take."""
_ADMIN_KEY, _KEY = "admin-bench-key-0123456789", "sk-console-bench-0123456789"
_REGIONS = ("eu", "us", "ap", "sa")
_SPANS = ("24h", "7d", "30d", "month", "365d")
_MODELS = 40
_REQUESTS = 50 * _MODELS  # sent before the measurement, so that metrics have counts
_DAYS, _WEEK = 365, 7


class _PageTime(msgspec.Struct, frozen=True, kw_only=True, rename={"kib": "KiB"}):
    """The milliseconds that requests for a page took, and the size of the page.

    `processor` is the processor time of the operators' process. Other work on the machine affects
    this time less than the other times.
    """

    page: str
    median: float
    p95: float
    longest: float
    processor: float
    kib: float


@click.command()
@click.option("--tenants", default=4000)
@click.option("--backends", default=200)
@click.option("--rounds", default=20, help="Number of requests for each page.")
@click.option("--postgresql", is_flag=True, help="Keep the ledger in PostgreSQL instead of SQLite.")
def measure(*, tenants: int, backends: int, rounds: int, postgresql: bool) -> None:
    """Measure the pages of the console; fail if a page takes more than 300 ms."""
    with ExitStack() as stack:
        url = ""
        if postgresql:
            if (folder := programs()) is None:
                raise click.ClickException("PostgreSQL is not installed (make install-system)")
            url = stack.enter_context(PostgreSQL(folder)).database()
        pages = asyncio.run(_beside_stubs(url, tenants=tenants, backends=backends, rounds=rounds))
    pages.sort(key=lambda page: -page.longest)
    show("Pages of the console: times in milliseconds", list(map(msgspec.to_builtins, pages)))
    if slow := [page.page for page in pages if page.longest > _LIMIT]:
        raise click.ClickException(f"over {_LIMIT:.0f} ms: {', '.join(slow)}")


async def _beside_stubs(
    ledger_url: str, *, tenants: int, backends: int, rounds: int
) -> list[_PageTime]:
    models = [stub_model(f"m-{number}") for number in range(_MODELS)]
    async with AsyncExitStack() as stack:
        stubs = []
        for number in range(backends):
            region = _REGIONS[number % len(_REGIONS)]
            stub = StubBackend(backend_id=f"{region}-{number}", region=region, models=models)
            stubs.append(await stack.enter_async_context(stub))

        def work() -> list[_PageTime]:
            with _gateway(ledger_url, stubs, tenants) as gateway, _operator(gateway) as client:
                paths = [*(page.path for page in PAGES), *_more(client, tenants)]
                pid = gateway.processes()["admin 0"]
                return [_time(client, path, rounds, pid) for path in paths]

        return await asyncio.to_thread(work)


@contextmanager
def _gateway(ledger_url: str, stubs: Sequence[StubBackend], tenants: int) -> Iterator[Gateway]:
    """Run a gateway that has already answered requests of all models."""
    regions = []
    for region in _REGIONS:
        backends = [{"id": s.backend_id, "url": s.url} for s in stubs if s.region == region]
        if backends:
            regions.append({"name": region, "pools": [{"backends": backends}]})
    document = {"regions": regions, "routing": {"probe_interval": 5.0}}
    with tempfile.TemporaryDirectory() as folder, Valkey() as valkey:
        gateway = Gateway(
            Path(folder) / "gateway",
            document,
            workers=2,
            admin=True,
            admin_key=_ADMIN_KEY,
            ledger_url=ledger_url,
            state_url=valkey.url,
            cache_url=valkey.url,
        )
        _fill_ledger(gateway.settings.ledger, tenants)
        add_tenants(gateway.settings.ledger, {"bench": _KEY})
        with gateway:
            bodies = (
                msgspec.json.encode({"model": f"m-{number % _MODELS}", "input": f"text {number}"})
                for number in range(_REQUESTS)
            )
            run_closed(gateway.target(_KEY), bodies, connections=8)
            yield gateway


@contextmanager
def _operator(gateway: Gateway) -> Iterator[httpx.Client]:
    """Yield a client that has logged in to the console."""
    url = f"http://127.0.0.1:{gateway.settings.admin_port}"
    wait_until(lambda: is_answered(f"{url}/health/ready"), what="the console is ready")
    with httpx.Client(base_url=url, headers={"origin": url}, timeout=30) as client:
        token = client.get("/console/login").text.partition('name="csrf" value="')[2]
        form = {"csrf": token.partition('"')[0], "key": _ADMIN_KEY}
        client.post("/console/login", data=form)
        yield client


def _more(client: httpx.Client, tenants: int) -> list[str]:
    """Return paths that the navigation does not have: parts of pages, later pages, searches."""
    tenant = f"tenant-{tenants // 2:05}"
    choices = ("&by=model", "&by=tenant", "&model=m-1", f"&tenant={tenant}")
    paths = (
        *("/console/overview/history", "/console/backends?page=2", "/console/backends?q=eu-1"),
        *("/console/models?q=m-1", "/console/models/m-1", "/console/models/m-1/arms"),
        *(f"/console/usage/figures?span={span}{which}" for span in _SPANS for which in choices),
        *("/console/tenants?page=40", f"/console/tenants/{tenant}"),
    )
    return [path for path in paths if client.get(path).status_code == httpx.codes.OK]


def _time(client: httpx.Client, path: str, rounds: int, pid: int) -> _PageTime:
    times, processor = [], []
    size = len(client.get(path).content)
    for _ in range(rounds):
        begun, used = time.perf_counter(), processor_seconds(pid)
        client.get(path).raise_for_status()
        times.append(1e3 * (time.perf_counter() - begun))
        processor.append(1e3 * (processor_seconds(pid) - used))
    return _PageTime(
        page=path,
        median=statistics.median(times),
        p95=percentile(sorted(times), 0.95),
        longest=max(times),
        processor=statistics.median(processor),
        kib=size / 1024,
    )


def _fill_ledger(url: str, tenants: int) -> None:
    """Create tenants with one key each, and write usage and its totals as billing does."""
    specs = [
        KeySpec(tenant=f"tenant-{number:05}", key_hash=f"{number:064x}", name="bench")
        for number in range(tenants)
    ]
    now = time.time_ns()
    week = now // DAY - _WEEK + 1
    hours = now // HOUR - week * HOURS_OF_DAY + 1
    days = _DAYS - _WEEK
    engine = sqlalchemy.create_engine(url)
    with Ledger.create(url) as ledger:
        for first in range(0, tenants, 1000):
            ledger.accounts.create_keys(specs[first : first + 1000], new_tenants=True)
        with engine.begin() as connection:
            _insert(connection, tenants, length=DAY, first=week - days, count=days)
            first = week * HOURS_OF_DAY
            _insert(connection, tenants, length=HOUR, first=first, count=hours)
            for length in LENGTHS:
                _add_totals(connection, length)
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        # PostgreSQL does this by itself after a while.
        connection.exec_driver_sql("ANALYZE")
    engine.dispose()


def _insert(connection: Connection, tenants: int, *, length: int, first: int, count: int) -> None:
    """Insert a row for each tenant and for each of `count` periods of `length` nanoseconds."""
    numbers = {"items": "100 + n", "hit": "60", "collapsed": "0", "computed": "40 + n"}
    numbers |= {"failed": "0", "rows": "40 + n", "tokens": "500", "requests": "20"}
    values = {
        "id": f"'rollup-{length}-' || t || '-' || n",
        "tenant": "'tenant-' || substr(CAST(100000 + n AS TEXT), 2)",
        "time": f"({first} + t) * CAST({length} AS BIGINT)",
        "key": "'key'",
        "model": f"'m-' || mod(n, {_MODELS})",
        "task": "'classify'",
        "status": "200",
        "region": "'eu'",
        "revision": "'abc'",
        "code": "''",
        "batch": "0",
        "is_summed": str(IN_TOTALS),
        **numbers,
    }
    query = (
        "WITH RECURSIVE tenants(n) AS"  # noqa: S608 - of constants
        f" (SELECT 0 UNION ALL SELECT n + 1 FROM tenants WHERE n + 1 < {tenants}),"
        f" times(t) AS (SELECT 0 UNION ALL SELECT t + 1 FROM times WHERE t + 1 < {count})"
        f" INSERT INTO usage_events ({', '.join(values)})"
        f" SELECT {', '.join(values.values())} FROM times, tenants"
    )
    connection.execute(sqlalchemy.text(query))


def _add_totals(connection: Connection, length: int) -> None:
    """Write the totals of blocks of `length` hours, as billing does."""
    blocks = read_marks(connection).blocks // HOUR
    start = f"time / {length * HOUR} * {length}"
    exists = {1: f"time >= {(blocks - KEPT) * HOUR}", HOURS_OF_DAY: "1 = 1"}
    which = exists.get(length, f"{start} + {length} <= {blocks}")
    columns = f"length, hour, tenant, model, batch, is_free, {', '.join(SUMMED)}"
    sums = ", ".join(f"sum({name})" for name in SUMMED)
    for tenant, kind in (("tenant", "tenant, model, batch"), (f"'{ALL_TENANTS}'", "model, batch")):
        connection.exec_driver_sql(
            f"INSERT INTO usage_totals ({columns})"  # noqa: S608 - of constants
            f" SELECT {length}, {start}, {tenant}, model, batch, 0, {sums}"
            f" FROM usage_events WHERE {which} GROUP BY {start}, {kind}"
        )
