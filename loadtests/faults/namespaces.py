"""Runs each process in its own network namespace, and drops packets between two of them."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self  # Any: values of rows

import httpx
import msgspec
import psycopg

from gateway.settings import Settings, environment, process_environment
from gateway.sockets.tcp_keepalive import DEFAULT_KEEPALIVE, TcpKeepalive
from loadtests.faults.catalogue import Case, Fault, LoadSpec
from loadtests.faults.judge import LedgerRow, Window
from loadtests.faults.model import ModelOracle, write_revision
from loadtests.faults.processes import create_tenants
from loadtests.faults.topology import LEDGER_QUERY, TopologyError, ledger_rows
from loadtests.machine import busy_seconds
from loadtests.process_resources import peak_mib
from testing.loopback import no_authorities
from testing.namespaces import NamespaceNetwork, missing
from testing.postgresql import programs
from testing.valkey import server_program
from testing.waiting import wait_until

BACKENDS = ("eu-0", "us-0")
OWN = {
    "gateway": "run-worker",
    "admin": "run-admin",
    "shipper": "run-shipper",
    "billing": "run-billing",
    "request-log": "run-request-log",
}
"""Processes of the gateway by member, and their entries."""
MEMBERS = ("client", *OWN, *BACKENDS, "state", "cache", "ledger")
SERVERS: Mapping[str, tuple[str, ...]] = {
    "state": ("gateway", "admin", "shipper", "billing", "request-log"),
    "cache": ("gateway", "admin"),
    "eu-0": ("gateway",),
    "backends": ("gateway",),
    "ledger": ("gateway", "admin", "shipper", "billing"),
}
"""The members that open connections to each server, or to all `backends`."""
_ADMIN_KEY = "admin-key-of-the-namespaces"
_AS_ADMIN = {"authorization": f"Bearer {_ADMIN_KEY}"}
_TOKEN = "a-token-of-the-namespaces"  # noqa: S105 - between processes of one run
_ADDRESS_SPACE = 6 * 1024**3
"""Bytes that a process may map."""
MEMORY_MIB, BUSY = 512, 0.6
"""Memory and share of a processor that each process may use during any partition."""
_ROOT = Path(__file__).parents[2]
_OWNER = "nobody"
_PORT, _ADMIN_PORT, _BACKEND_PORT, _REDIS_PORT = 8080, 8081, 8100, 6379
_START, _LOOK, _PATIENCE = 120.0, 0.1, 2.0
_REQUESTS = re.compile(r"^sluicegate_requests_total\{[^}]*\} (\S+)$", re.MULTILINE)


class Namespaces:
    """A gateway, two backends, two Redis and PostgreSQL, each process in a network namespace."""

    name = "namespaces"

    def __init__(self, folder: Path, *, keepalive: TcpKeepalive = DEFAULT_KEEPALIVE) -> None:
        self._folder = folder
        self._keepalive = keepalive
        self._stack = ExitStack()
        self.keys = {"north": "sk-north-of-namespaces", "south": "sk-south-of-namespaces"}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._due = 0.0
        """The requests that billing and the request log must have before everything is well."""

    def __enter__(self) -> Self:
        if reason := missing() or (programs() is None and "PostgreSQL is not installed"):
            raise TopologyError(reason)
        with ExitStack() as stack:
            self._stack = stack
            self._network = stack.enter_context(NamespaceNetwork(MEMBERS))
            stack.enter_context(self._network.inside("client"))
            self._client = stack.enter_context(
                httpx.Client(timeout=_PATIENCE, verify=no_authorities())
            )
            self._settings = self._make_settings()
            write_revision(self._folder / "models", 1)
            self.oracle = ModelOracle([self._folder / "models"])
            self._write_configuration()
            self._start_redis("state", "--maxmemory-policy", "noeviction")
            self._start_redis("cache", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu")
            self._start_postgresql()
            for name in BACKENDS:
                self._start_backend(name)
            self._until(self._has_ledger, "PostgreSQL answers")
            create_tenants(self._settings.ledger, self.keys)
            for name, entry in OWN.items():
                own = msgspec.structs.replace(
                    self._settings, worker=name, admin_key=_ADMIN_KEY if name == "admin" else ""
                )
                self._start(name, sys.executable, "-m", "gateway", entry, values=environment(own))
            self._until(lambda: not self.unwell(), "the gateway is ready")
            # What else a machine does is no part of what is measured.
            for name in ("shipper", "billing", "request-log"):
                own_priority = os.getpriority(os.PRIO_PROCESS, 0)
                os.setpriority(os.PRIO_PROCESS, self.processes[name].pid, own_priority)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def parts(self, fault: str) -> Sequence[str]:
        """Return each pair of connected processes, such as `state from gateway`."""
        return [f"{server} from {name}" for server, names in SERVERS.items() for name in names]

    @contextmanager
    def inject(self, fault: str, part: str) -> Iterator[None]:
        """Drop packets between the two members of a pair, in the direction of the fault.

        `part` may name further pairs after `; `. Their packets are dropped in both directions.
        """
        direction = fault.split("-")[1]
        for pair in part.split("; "):
            server, client = pair.split(" from ")
            for each in BACKENDS if server == "backends" else (server,):
                if direction != "back":
                    self._network.drop(client, each)
                if direction != "forth":
                    self._network.drop(each, client)
            direction = "both"
        try:
            yield
        finally:
            self._network.restore_traffic()
            self._due = self._requests()

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Host and port of the gateway."""
        return [(self._settings.host, self._settings.port)]

    def inside(self) -> AbstractContextManager[None]:
        """Enter the namespace of the client."""
        return self._network.inside("client")

    def unwell(self) -> Sequence[str]:
        """Return the processes that ended, are not ready, or are behind in billing or the log."""
        found = [name for name, child in self.processes.items() if child.poll() is not None]
        host, admin = self._settings.host, self._settings.admin_host
        for url in (
            f"http://{host}:{_PORT}/health/ready",
            f"http://{admin}:{_ADMIN_PORT}/health/ready",
            f"http://{admin}:{_ADMIN_PORT}/admin/regions",
        ):
            try:
                answer = self._client.get(url, headers=_AS_ADMIN)
                is_degraded = "ready" in url and bool(answer.json()["degraded"])
            except (httpx.HTTPError, ValueError) as error:
                found.append(f"{url}: {type(error).__name__}")
            else:
                if not answer.is_success or is_degraded:
                    found.append(f"{url}: {answer.text}")
        if not found and self._billed() < self._due:
            found.append("billing")
        if not found and self.logged() < self._due:
            found.append("request-log")
        return found

    def billed(self, since: float) -> Sequence[LedgerRow]:
        """Return the ledger's requests since a time."""
        return ledger_rows(self._ask(LEDGER_QUERY.format(since=int(since * 1e9))))

    def counters(self) -> Mapping[str, float]:
        """Return requests, lines of the request log, and processor time of each process."""
        found = {"time": time.monotonic(), "logged": float(self.logged())}
        for name, child in self.processes.items():
            if child.poll() is None:
                found[f"busy {name}"] = busy_seconds(child.pid)
        return found

    def logged(self) -> int:
        """Return the lines of the request log."""
        files = self._settings.data_dir.glob("requests.log*")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def restore(self) -> None:
        """Let all packets pass."""
        self._network.restore_traffic()

    def _requests(self) -> float:
        """Return the requests that the gateway answered, by its metrics; 0 without metrics."""
        url = f"http://{self._settings.admin_host}:{_ADMIN_PORT}/metrics"
        with contextlib.suppress(httpx.HTTPError):
            page = self._client.get(url, headers=_AS_ADMIN).raise_for_status().text
            return sum(map(float, _REQUESTS.findall(page)))
        return 0.0

    def _billed(self) -> float:
        return float(self._ask("SELECT coalesce(sum(requests), 0) FROM usage_events")[0][0])

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        place = f"host={self._network.address('ledger')} user=tests dbname=postgres"
        with psycopg.connect(place, connect_timeout=2) as connection:
            return connection.execute(query.encode()).fetchall()

    def _has_ledger(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self._ask("SELECT 1"))
        return False

    @staticmethod
    def _until(holds: Callable[[], bool], what: str) -> None:
        try:
            wait_until(holds, within=_START, what=what, every=_LOOK)
        except AssertionError as error:
            raise TopologyError(str(error)) from error

    def _make_settings(self) -> Settings:
        at, keepalive = self._network.address, self._keepalive
        return Settings(
            data_dir=self._folder / "data",
            config=self._folder / "config",
            state_url=f"redis://{at('state')}:{_REDIS_PORT}/0",
            cache_url=f"redis://{at('cache')}:{_REDIS_PORT}/0",
            ledger_url=f"postgresql+psycopg://tests@{at('ledger')}/postgres",
            host=at("gateway"),
            port=_PORT,
            admin_host=at("admin"),
            admin_port=_ADMIN_PORT,
            backend_token=_TOKEN,
            tcp_keepalive_idle=keepalive.idle,
            tcp_keepalive_interval=keepalive.interval,
            tcp_keepalive_count=keepalive.count,
            tcp_user_timeout=keepalive.user_timeout,
            # What else a machine does makes no worker refuse requests.
            max_loop_delay=0.0,
        )

    def _write_configuration(self) -> None:
        regions = [
            {"name": name.partition("-")[0], "pools": [{"backends": [{"id": name, "url": url}]}]}
            for name in BACKENDS
            for url in [f"http://{self._network.address(name)}:{_BACKEND_PORT}"]
        ]
        self._settings.config.mkdir(parents=True)
        # JSON is YAML.
        content = msgspec.json.encode({"regions": regions})
        (self._settings.config / "gateway.yaml").write_bytes(content)
        self._settings.metrics_dir.mkdir(parents=True)

    def _start_redis(self, name: str, *options: str) -> None:
        folder = self._folder / name
        folder.mkdir()
        place = ("--bind", self._network.address(name), "--port", str(_REDIS_PORT))
        rest = ("--protected-mode", "no", "--dir", str(folder), "--save", "")
        self._start(name, server_program(), *place, *rest, *options)

    def _start_postgresql(self) -> None:
        folder = programs()
        if folder is None:
            raise TopologyError("PostgreSQL is not installed (make install-system)")
        home = self._folder / "ledger"
        home.mkdir()
        shutil.chown(home, _OWNER)
        for parent in (self._folder, *self._folder.parents):
            # Its owner walks through folders that may be root's alone.
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        data = home / "data"
        options = ("--username", "tests", "--auth", "trust", "--no-sync", "--locale", "C")
        subprocess.run(
            [folder / "initdb", "--pgdata", data, *options, "--encoding", "UTF8"],
            check=True,
            capture_output=True,
            cwd=home,
            user=_OWNER,
        )
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.87.0.0/24 trust\n")
        as_owner = ("setpriv", "--reuid", _OWNER, "--regid", "nogroup", "--clear-groups")
        place = ("-c", f"listen_addresses={self._network.address('ledger')}", "-k", str(home))
        rest = ("-c", "fsync=off", "-c", "max_connections=60")
        self._start("ledger", *as_owner, str(folder / "postgres"), "-D", str(data), *place, *rest)

    def _start_backend(self, name: str) -> None:
        address = self._network.address(name)
        place = ("--host", address, "--port", str(_BACKEND_PORT))
        named = ("--region", name.partition("-")[0], "--id", name)
        models = ("--models", str(self._folder / "models"))
        values = {
            "SLUICEGATE_BACKEND_TOKEN": _TOKEN,
            "SLUICEGATE_BACKEND_PROVIDER": "paced",
            "SLUICEGATE_BACKEND_THREADS": "1",
            "SLUICEGATE_BACKEND_TOKENIZER_THREADS": "1",
        }
        argv = (sys.executable, "-m", "backends", "serve", *place, *named, *models)
        self._start(name, *argv, values=values)

    def _start(self, name: str, *argv: str, values: Mapping[str, str] | None = None) -> None:
        command = self._network.command(name, "prlimit", f"--as={_ADDRESS_SPACE}", *argv)
        inherited = process_environment().items()
        own = {n: v for n, v in inherited if not n.startswith("SLUICEGATE_")}
        own |= {"PYTHONPATH": str(_ROOT), "PATH": f"{os.defpath}:/usr/sbin"}
        with (self._folder / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                command,
                cwd=self._folder if name == "ledger" else _ROOT,
                env=own | dict(values or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes[name] = child
        self._stack.callback(child.wait)
        self._stack.callback(child.kill)


def nobody_suffers(case: Case) -> Iterator[str]:
    """Find requests without an answer or a line in the log, and processes that used too much."""
    topology: Namespaces = case.topology
    # What comes after everything is well hides how busy a fault makes a process.
    start, end = case.counters["start"], case.counters["well"]
    answered = sum(each.status != 0 for each in case.sent)
    if lost := len(case.sent) - answered:
        yield f"{lost} requests had no answer"
    due = start["logged"] + answered
    with contextlib.suppress(AssertionError):
        wait_until(lambda: topology.logged() >= due, within=_START, every=_LOOK)
    if topology.logged() != due:
        yield f"the request log has {topology.logged() - due:+.0f} requests"
    busy = {
        name: (end[f"busy {name}"] - start[f"busy {name}"]) / (end["time"] - start["time"])
        for name in topology.processes
        if f"busy {name}" in end
    }
    memory = {name: peak_mib(topology.processes[name].pid) for name in busy}
    case.figures.update(busiest=round(max(busy.values()), 2), memory_mib=max(memory.values()))
    yield from (f"{name} had {size} MiB" for name, size in memory.items() if size > MEMORY_MIB)
    yield from (f"{name} kept {s:.2f} processors busy" for name, s in busy.items() if s > BUSY)


_DIRECTIONS = {"both": "in both directions", "forth": "to the server", "back": "to the client"}
FAULTS = tuple(
    Fault(
        name=f"drop-{direction}{'-long' if hold > 5 else ''}",
        what=f"drops the packets between two processes {said}",
        undo="they pass",
        topologies=("namespaces",),
        hold=hold,
        # No model can be reached: only the cache answers.
        windows={"backends": Window(is_open=True, after_end=10)},
        load=LoadSpec(rate=20.0, hasty=0.0),
        checks=(nobody_suffers,),
    )
    for hold in (5.0, 120.0)
    for direction, said in _DIRECTIONS.items()
)
