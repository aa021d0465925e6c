"""Starts the arena's containers and gives access to its admin listener and its ledger."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx
import msgspec

from loadtests.arena import topology
from loadtests.arena.podman import HOME, PodmanError, inspect, run
from loadtests.arena.topology import PREFIX, Service

_START = 120.0
_TENANTS = ("north", "south", "west")
_REQUESTS = re.compile(r"^sluicegate_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)
_LIMITS = [{"name": "wide", "unit": "requests", "capacity": 100_000_000, "window": 60.0}]


class ArenaError(Exception):
    """The arena itself failed; the case says nothing of the project."""


class Arena:
    """Holds all containers of the topology."""

    def __init__(self, services: dict[str, Service] | None = None) -> None:
        self.services = services or topology.services()

    def start(self) -> None:
        """Start stopped containers, each as soon as its dependencies are healthy."""
        topology.make_networks()
        topology.make_volumes(self.services)
        there = run("ps", "--all", "--format", "{{.Names}}").split()
        for service in self.services.values():
            for need in service.needs:
                self.until_healthy([need])
            if service.container not in there:
                print(f"starting {service.name}")
                topology.start(service)
            elif inspect(service.container).status != "running":
                run("start", service.container)
        self.until_healthy(list(self.services))

    def until_healthy(self, names: list[str], within: float = _START) -> None:
        """Wait until each of `names` is healthy.

        Raises:
            ArenaError: one is not in time.
        """
        for name in names:
            wait_until(
                partial(self._is_healthy, name), within=within, what=f"{name} is not healthy"
            )

    def unhealthy(self, names: list[str] | None = None) -> list[str]:
        """Return the names of containers that are unhealthy or stopped."""
        chosen = [self.services[name] for name in names or self.services]
        return [service.name for service in chosen if not _healthy(service)]

    def _is_healthy(self, name: str) -> bool:
        return not self.unhealthy([name])

    def keys(self) -> list[str]:
        """Return the tenants' keys, created once, with limits above any load here."""
        path = HOME / "keys.json"
        if path.exists():
            keys: list[str] = msgspec.json.decode(path.read_bytes())
            return keys
        keys = []
        with self.admin() as admin:
            for tenant in _TENANTS:
                body = {"id": tenant, "limits": _LIMITS}
                admin.post("/admin/tenants", json=body).raise_for_status()
                for _ in range(2):
                    made = admin.post("/admin/keys", json={"tenant": tenant}).raise_for_status()
                    keys.append(made.json()["key"])
        path.touch(mode=0o600)
        path.write_bytes(msgspec.json.encode(keys))
        return keys

    @contextmanager
    def admin(self, gateway: str = "gateway-1") -> Iterator[httpx.Client]:
        """Return a client of a gateway's admin listener."""
        address = inspect(PREFIX + gateway).address[PREFIX + "edge"]
        key = topology.secrets_of_the_arena()["SLUICEGATE_ADMIN_KEY"]
        headers = {"authorization": f"Bearer {key}"}
        with httpx.Client(
            base_url=f"http://{address}:8081", headers=headers, timeout=30.0
        ) as client:
            yield client

    def requests(self) -> dict[str, float]:
        """Return how many requests each gateway has answered since it started."""
        found = {}
        for name in self.services:
            if name.startswith("gateway-"):
                with self.admin(name) as admin:
                    page = admin.get("/metrics").raise_for_status().text
                found[name] = sum(map(float, _REQUESTS.findall(page)))
        return found

    def ask_ledger(self, query: str) -> list[list[str]]:
        """Return the rows of a query, as text.

        Raises:
            PodmanError: the database cannot be asked.
        """
        name = self.services["database"].container
        words = ("psql", "--host=127.0.0.1", "--username=sluicegate", "--no-align", "--tuples-only")
        password = (
            f"--env=PGPASSWORD={topology.secrets_of_the_arena()['SLUICEGATE_DATABASE_PASSWORD']}"
        )
        rows = run("exec", password, name, *words, "--field-separator=\t", "--command", query)
        return [line.split("\t") for line in rows.splitlines()]


def wait_until(is_so: Callable[[], bool], *, within: float, what: str) -> float:
    """Wait until `is_so` returns true; return the seconds that took.

    Raises:
        ArenaError: not in time.
    """
    started = time.monotonic()
    while not is_so():
        if time.monotonic() - started > within:
            raise ArenaError(f"{what} after {within:.0f} s")
        time.sleep(0.25)
    return time.monotonic() - started


def _healthy(service: Service) -> bool:
    try:
        return topology.is_healthy(service)
    except PodmanError:
        return False
