"""Runs compose.yaml and its overrides `ha` and `observability` under podman, to inject faults."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial

import httpx
from typing_extensions import override

from loadtests.containers import images, podman, services
from loadtests.containers.images import PRESENT
from loadtests.containers.podman import inspect, names, psql, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import Topology, TopologyError, client_of, counted
from testing.waiting import wait_until

ADMIN_KEY = "SLUICEGATE_ADMIN_KEY"
_AT_ONCE = 4
_LIMITS = [{"name": "wide", "unit": "requests", "capacity": 100_000_000, "window": 60.0}]


class Containers(Topology):
    """All containers of the production layout, with images of this release or the previous one."""

    oracle: RecordedAnswers

    def __init__(self, tag: str) -> None:
        super().__init__()
        self.secrets = services.new_secrets()
        self.tag = tag
        self.services = services.services(self.secrets, tag=tag)
        self.oracle = RecordedAnswers()
        self.send_to(BALANCER_PORT)

    @override
    def start(self, stack: ExitStack) -> None:
        if lack := podman.missing():
            raise TopologyError(lack)
        podman.prepare()
        for tag in dict.fromkeys((PRESENT, self.tag)):
            images.build(tag)
        services.remove_everything()
        stack.callback(services.remove_everything)
        began = time.monotonic()
        self.start_services(self.services)
        self.started_in = time.monotonic() - began
        with self.admin() as admin:
            self.keys = create_keys(admin, ("north", "south", "west"))
        self.oracle.record(f"http://127.0.0.1:{BALANCER_PORT}", self.keys["north"])

    def send_to(self, port: int) -> None:
        """From now on, send callers' requests to a port of this machine."""
        self.addresses = [("127.0.0.1", port)]

    @override
    def unwell(self) -> Sequence[str]:
        """Return the names of services that are unhealthy or stopped."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            healthy = pool.map(services.is_healthy, self.services.values())
        return [name for name, is_so in zip(self.services, healthy, strict=True) if not is_so]

    @override
    def counters(self) -> Mapping[str, float]:
        """Return how many requests each gateway has answered; 0 for unreachable gateways."""
        found: dict[str, float] = {}
        for name in self.services:
            if name.startswith("gateway-"):
                with suppress(OSError, KeyError), self.admin(name) as admin:
                    found |= counted(admin, {name: "requests_total"})
        return found

    @override
    def ask_ledger(self, query: str) -> list[list[str]]:
        password = self.secrets["SLUICEGATE_DATABASE_PASSWORD"]
        return psql(PREFIX + "database", query, "--host=127.0.0.1", password=password)

    def start_services(self, chosen: Iterable[str]) -> None:
        """Start services, dependencies first, several at a time; wait until all are healthy."""
        services.create_networks_and_volumes(self.services)
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
            # Dependencies are submitted first: no thread waits for a service that has not begun to
            # start.
            for name in chosen:
                service = self.services[name]
                needed = [started[need] for need in service.depends_on if need in started]
                started[name] = pool.submit(start, service, needed)
        for each in started.values():
            each.result()

    def replace(self, changed: Service) -> None:
        """Replace a container by a new, healthy one at the same address."""
        former = inspect(changed.container)
        services.discard(changed)
        services.start(changed, former=former)
        self.until_healthy([changed.name], within=60.0)

    def until_healthy(self, chosen: Iterable[str], *, within: float = 300.0) -> None:
        """Wait until each of the chosen services is healthy."""
        for name in chosen:
            is_healthy = partial(services.is_healthy, self.services[name])
            wait_until(is_healthy, within=within, what=f"{name} is healthy", every=0.25)

    def admin(self, gateway: str = "gateway-1", key: str = "") -> httpx.Client:
        """Return a client of a gateway's admin listener."""
        return client_of(self.url(gateway, 8081), key or self.secrets[ADMIN_KEY])

    def url(self, name: str, port: int) -> str:
        """Return the URL of a port of a service, in the first network of the service."""
        service = self.services[name]
        network = PREFIX + next(iter(service.networks))
        return f"http://{inspect(service.container).address[network]}:{port}"


def create_keys(admin: httpx.Client, tenants: Iterable[str]) -> dict[str, str]:
    """Create tenants with limits above any load; return a key of each tenant by its id."""
    keys = {}
    for tenant in tenants:
        admin.post("/admin/tenants", json={"id": tenant, "limits": _LIMITS}).raise_for_status()
        made = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status()
        keys[tenant] = made.json()["key"]
    return keys
