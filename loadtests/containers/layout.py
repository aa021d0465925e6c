"""Starts the services of compose.yaml in containers, and reaches their listeners and the ledger."""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial

import httpx

from loadtests.containers import services
from loadtests.containers.podman import inspect, names, run
from loadtests.containers.services import PREFIX, Service
from testing.waiting import wait_until

ADMIN_KEY = "SLUICEGATE_ADMIN_KEY"
_AT_ONCE = 4
_START, _LOOK = 300.0, 0.25
_REQUESTS = re.compile(r"^sluicegate_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
_LIMITS = [{"name": "wide", "unit": "requests", "capacity": 100_000_000, "window": 60.0}]


class Layout:
    """All containers of the production layout."""

    def __init__(self, secrets: dict[str, str], *, tag: str) -> None:
        self.secrets = secrets
        self.services = services.services(secrets, tag=tag)

    def start(self, chosen: Iterable[str] = ()) -> None:
        """Start the chosen services, or all, several at a time, each once its needs are healthy.

        Containers that run are left alone.

        Raises:
            PodmanError: one cannot be started.
            AssertionError: one is not healthy in time.
        """
        services.create_networks()
        services.create_volumes(self.services)
        there = names("ps", "--all")
        started: dict[str, Future[None]] = {}

        def start(service: Service, needed: list[Future[None]]) -> None:
            for each in needed:
                each.result()
            if service.container not in there:
                services.start(service)
            elif not service.ends:
                run("start", service.container)
            self.until_healthy([service.name])

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # Dependencies are submitted first: no thread waits for one that has not begun.
            for name in chosen or self.services:
                service = self.services[name]
                needed = [started[need] for need in service.needs if need in started]
                started[name] = pool.submit(start, service, needed)
            for each in started.values():
                each.result()

    def restart_unhealthy(self) -> None:
        """Replace the containers that a former fault left unhealthy."""
        try:
            self.until_healthy(self.services)
        except AssertionError as error:
            print(f"{error}: replaced by hand", flush=True)
            for name in self.unhealthy():
                services.discard(self.services[name])
            self.start()

    def until_healthy(self, chosen: Iterable[str], *, within: float = _START) -> None:
        """Wait until each of the chosen services is healthy.

        Raises:
            AssertionError: one is not, in time.
        """
        for name in chosen:
            wait_until(
                partial(services.is_healthy, self.services[name]),
                within=within,
                what=f"{name} is healthy",
                every=_LOOK,
            )

    def unhealthy(self) -> list[str]:
        """Return the names of services that are unhealthy or stopped."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            healthy = pool.map(services.is_healthy, self.services.values())
        return [name for name, is_so in zip(self.services, healthy, strict=True) if not is_so]

    @contextmanager
    def admin(self, gateway: str = "gateway-1", key: str = "") -> Iterator[httpx.Client]:
        """Return a client of a gateway's admin listener."""
        url = self.url(gateway, 8081, network="edge")
        headers = {"authorization": f"Bearer {key or self.secrets[ADMIN_KEY]}"}
        with httpx.Client(base_url=url, headers=headers, timeout=30.0) as client:
            yield client

    def url(self, name: str, port: int, *, network: str = "") -> str:
        """Return the URL of a port of a service, in `network` or its first one."""
        service = self.services[name]
        address = inspect(service.container).address
        return f"http://{address[PREFIX + (network or next(iter(service.networks)))]}:{port}"

    def requests(self) -> dict[str, float]:
        """Return how many requests each gateway that can be reached has answered."""
        found = {}
        for name in self.services:
            if name.startswith("gateway-"):
                with suppress(httpx.HTTPError, OSError, KeyError), self.admin(name) as admin:
                    page = admin.get("/metrics").raise_for_status().text
                    found[name] = sum(map(float, _REQUESTS.findall(page)))
        return found

    def ask_ledger(self, query: str) -> list[list[str]]:
        """Return the rows of a query, as text.

        Raises:
            PodmanError: the database cannot be asked.
        """
        words = ("psql", "--host=127.0.0.1", "--username=sluicegate", "--no-align", "--tuples-only")
        password = f"--env=PGPASSWORD={self.secrets['SLUICEGATE_DATABASE_PASSWORD']}"
        rows = run("exec", password, PREFIX + "database", *words, "--field-separator=\t",
                   "--command", query)  # fmt: skip
        return [line.split("\t") for line in rows.splitlines()]


def create_keys(admin: httpx.Client, tenants: Iterable[str]) -> dict[str, str]:
    """Create tenants with limits above any load, and return a key of each by its tenant."""
    keys = {}
    for tenant in tenants:
        admin.post("/admin/tenants", json={"id": tenant, "limits": _LIMITS}).raise_for_status()
        made = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status()
        keys[tenant] = made.json()["key"]
    return keys
