"""Runs the whole product as processes, started by `sluicegate up` as a user starts it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec

from sluicegate.gateway.settings import process_environment
from testing.loopback import get, is_answered, no_authorities
from testing.ports import free_port
from testing.waiting import wait_until

DEMO_KEY = "sk-test-demo-key-0123456789"
ADMIN_KEY = "admin-test-key-0123456789"
TWO_REGIONS = ("--regions", "eu,us")
"""Arguments for a system with a backend in each of two regions."""
_ROOT = Path(__file__).parents[1]


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `processes.json`, which describes a process."""

    role: str
    region: str | None = None
    index: int = 0
    pid: int
    address: str | None = None


class System:
    """A running `sluicegate up`.

    At the exit, the system stops. An error is raised if a process is left behind.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        models: Path,
        workers: int = 1,
        config: Path | None = None,
        environment: dict[str, str] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.data_dir = data_dir
        self.port, self.admin_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.key = DEMO_KEY
        self._workers = workers
        self._output = data_dir.parent / f"{data_dir.name}.out"
        self._command = [
            *(sys.executable, "-m", "sluicegate.gateway", "up"),
            *("--port", str(self.port), "--admin-port", str(self.admin_port)),
            *("--workers", str(workers), "--data-dir", str(data_dir), "--models", str(models)),
            *("--config", str(config or _ROOT / "config")),
            *("--demo-key", DEMO_KEY, "--admin-key", ADMIN_KEY),
            *arguments,
        ]
        # Most tests need neither batch jobs nor gRPC, and a system starts sooner without them.
        own = {"SLUICEGATE_BATCHES": "false", "SLUICEGATE_GRPC_PORT": "0"}
        self._environment = dict(process_environment()) | own | (environment or {})
        port_of_grpc = self._environment["SLUICEGATE_GRPC_PORT"]
        self.grpc_address = "" if port_of_grpc == "0" else f"127.0.0.1:{port_of_grpc}"
        """The address at which the system serves gRPC; empty if it serves none."""
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._child is not None and self._child.poll() is None:
            self.stop()

    def start(self, *, within: float = 240.0) -> float:
        """Start the system, wait until it is ready, and return the seconds that this took."""
        started = time.monotonic()
        with self._output.open("wb") as output:
            self._child = subprocess.Popen(
                self._command, stdout=output, stderr=subprocess.STDOUT, env=self._environment
            )
        try:
            wait_until(self._ready, within=within, what="ready", every=0.02)
        except BaseException as error:  # also when the test's own time limit ends the wait
            self._running().kill()
            raise AssertionError(f"{error}; it said: {self.output()}") from error
        return time.monotonic() - started

    def stop(self) -> int:
        """Stop the system as Ctrl-C does; return its exit status."""
        is_started = (self.data_dir / "processes.json").exists()
        pids = [process.pid for process in self.processes()] if is_started else []
        child = self._running()
        child.send_signal(signal.SIGINT)
        status = child.wait(timeout=90.0)
        left = [pid for pid in pids if pid != child.pid and _alive(pid)]
        assert not left, f"processes were left: {left}"
        return status

    def wait(self) -> int:
        """Wait until the system ends by itself, and return its exit status."""
        return self._running().wait(timeout=60.0)

    @property
    def pid(self) -> int:
        """The id of the process that started all others."""
        return self._running().pid

    def output(self) -> str:
        """Return the output of the system."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def processes(self, role: str | None = None) -> list[Process]:
        """Return all processes, or only the processes of `role`."""
        text = (self.data_dir / "processes.json").read_bytes()
        found = msgspec.json.decode(text, type=list[Process])
        return [process for process in found if role in (None, process.role)]

    def kill(self, role: str, *, region: str | None = None) -> int:
        """Kill the first process of `role` by SIGKILL; return its id."""
        victim = next(p for p in self.processes(role) if region in (None, p.region))
        os.kill(victim.pid, signal.SIGKILL)
        return victim.pid

    def replaced(self, role: str, pid: int, *, region: str | None = None) -> bool:
        """Return whether a process of `role` runs whose id is not `pid`."""
        now = [p for p in self.processes(role) if region in (None, p.region)]
        return bool(now) and all(p.pid != pid and _alive(p.pid) for p in now)

    def is_backend_ready(self, region: str) -> bool:
        """Return whether the backends of `region` say that they are ready.

        This asks the backends, because gateways may still show the last probe of a killed backend.
        """
        return all(
            is_answered(f"{process.address}/health/ready", timeout=1)
            for process in self.processes("backend")
            if process.region == region
        )

    def client(self, **options: Any) -> httpx.Client:
        """Return a client with the demo API key."""
        return httpx.Client(**self._options(), **options)

    def async_client(self, **options: Any) -> httpx.AsyncClient:
        """Return an asynchronous client with the demo API key."""
        return httpx.AsyncClient(**self._options(), **options)

    def admin(self) -> httpx.Client:
        """Return a client of the operators' listener."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.Client(
            base_url=self.admin_url, headers=headers, timeout=60, verify=no_authorities()
        )

    def _options(self) -> dict[str, Any]:
        """Return the options of a client with the demo API key."""
        headers = {"authorization": f"Bearer {self.key}"}
        return {"base_url": self.url, "headers": headers, "timeout": 60, "verify": no_authorities()}

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._child is not None
        return self._child

    def _ready(self) -> bool:
        status = self._running().poll()
        assert status is None, f"it ended with {status}: {self.output()}"
        return (
            "Ctrl-C stops everything" in self.output()
            and is_answered(f"{self.url}/health/ready", timeout=1)
            and is_answered(f"{self.admin_url}/health/ready", timeout=1)
            and self._knows_regions()
        )

    def _knows_regions(self) -> bool:
        """Whether every worker knows every region. Workers learn the regions from their probes.

        Each new connection may go to any worker, so several connections are opened.
        """
        regions = {process.region for process in self.processes("backend")}
        asked = (
            get(f"{self.url}/v1/models", headers={"authorization": f"Bearer {self.key}"})
            for _ in range(8 if self._workers > 1 else 1)
        )
        return all(
            set(model["regions"]) == regions
            for answer in asked
            for model in (answer.json()["data"] if answer.status_code == 200 else [{"regions": []}])
        )


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def pretty(response: httpx.Response) -> str:
    """Return a response as text, for the message of a failed assertion."""
    return f"{response.status_code} {json.dumps(response.json())}"
