"""Runs compose.yaml and its overrides `ha` and `observability` under podman, to inject faults."""

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import httpx
from typing_extensions import override

from loadtests.containers import images, podman, services
from loadtests.containers.images import FORMER, PRESENT
from loadtests.containers.podman import inspect, names, psql, run
from loadtests.containers.services import BALANCER_PORT, PREFIX, Service
from loadtests.faults.recorded import RecordedAnswers
from loadtests.faults.topology import Topology, TopologyError
from testing.waiting import wait_until

ADMIN_KEY = "SLUICEGATE_ADMIN_KEY"
_AT_ONCE = 4
_START, _LOOK = 300.0, 0.25
_REQUESTS = re.compile(r"^sluicegate_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
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
        images.build(PRESENT)
        if self.tag == FORMER:
            images.build(FORMER, images.former_release())
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
        """Return how many requests each gateway has answered; unreachable gateways are left out."""
        found = {}
        for name in self.services:
            if name.startswith("gateway-"):
                with suppress(httpx.HTTPError, OSError, KeyError), self.admin(name) as admin:
                    page = admin.get("/metrics").raise_for_status().text
                    found[name] = sum(map(float, _REQUESTS.findall(page)))
        return found

    @override
    def restore(self) -> None:
        """Replace the containers that an earlier fault left unhealthy."""
        self.send_to(BALANCER_PORT)
        run("rm", "--force", "--ignore", f"{PREFIX}load-balancer-next")
        try:
            self.until_healthy(self.services)
        except AssertionError as error:
            print(f"{error}: replaced by hand", flush=True)
            for name in self.unwell():
                services.discard(self.services[name])
            self.start_services(self.services)

    @override
    def ask_ledger(self, query: str) -> list[list[str]]:
        password = self.secrets["SLUICEGATE_DATABASE_PASSWORD"]
        return psql(PREFIX + "database", query, "--host=127.0.0.1", password=password)

    def start_services(self, chosen: Iterable[str]) -> None:
        """Start services, dependencies first, several at a time; wait until all are healthy.

        Containers that already run are not started again.
        """
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

    def until_healthy(self, chosen: Iterable[str], *, within: float = _START) -> None:
        """Wait until each of the chosen services is healthy."""
        for name in chosen:
            is_healthy = partial(services.is_healthy, self.services[name])
            wait_until(is_healthy, within=within, what=f"{name} is healthy", every=_LOOK)

    @contextmanager
    def admin(self, gateway: str = "gateway-1", key: str = "") -> Iterator[httpx.Client]:
        """Return a client of a gateway's admin listener."""
        url = self.url(gateway, 8081, network="edge")
        headers = {"authorization": f"Bearer {key or self.secrets[ADMIN_KEY]}"}
        with httpx.Client(base_url=url, headers=headers, timeout=30.0) as client:
            yield client

    def url(self, name: str, port: int, *, network: str = "") -> str:
        """Return the URL of a port of a service, in `network` or in the service's first network."""
        service = self.services[name]
        address = inspect(service.container).address
        return f"http://{address[PREFIX + (network or next(iter(service.networks)))]}:{port}"


def create_keys(admin: httpx.Client, tenants: Iterable[str]) -> dict[str, str]:
    """Create tenants with limits above any load; return a key of each tenant by its id."""
    keys = {}
    for tenant in tenants:
        admin.post("/admin/tenants", json={"id": tenant, "limits": _LIMITS}).raise_for_status()
        made = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status()
        keys[tenant] = made.json()["key"]
    return keys
