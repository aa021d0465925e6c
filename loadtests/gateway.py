"""Runs `sluicegate gateway` as a process, with a test's configuration document and settings."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self  # Any: sections of a document

import msgspec

from loadtests.generator import Target
from sluicegate.gateway.auth.keys import hash_key
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings, environment, process_environment
from sluicegate.gateway.types import Rule
from testing.loopback import is_answered
from testing.ports import free_port
from testing.system import Process
from testing.valkey import Valkey
from testing.waiting import wait_until

WIDE_LIMITS = {
    "tenant": [{"name": "m", "unit": "requests", "capacity": 10**9, "window": 60.0}],
}
"""The document's section `limits`, with limits so high that no load is refused."""


class Gateway:
    """Runs a gateway with `workers` workers while entered; a test may `kill` and `start` it again.

    With `source`, the code of another checkout runs.
    """

    _child: subprocess.Popen[bytes]

    def __init__(
        self,
        folder: Path,
        document: Mapping[str, Any],
        *,
        workers: int,
        admin: bool = False,
        source: Path | None = None,
        **settings: Any,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.port = free_port()
        self.settings = Settings(
            data_dir=folder / "data",
            config=folder / "config",
            port=self.port,
            admin_port=free_port(),
            **settings,
        )
        self.settings.config.mkdir()
        self.settings.data_dir.mkdir()
        # JSON is YAML.
        (self.settings.config / "gateway.yaml").write_bytes(msgspec.json.encode(document))
        command = [sys.executable, "-m", "sluicegate.gateway", "gateway", "--workers", str(workers)]
        self._command = command if admin else [*command, "--no-admin"]
        self._source = source
        self._log = folder / "log"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._child.terminate()
        # A stop takes long on a busy machine; other tests measure its time.
        self._child.wait(300.0)

    def start(self) -> None:
        """Start the gateway, and return when all workers know the backends."""
        other = {} if self._source is None else {"PYTHONPATH": str(self._source)}
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                self._command,
                env=dict(process_environment()) | environment(self.settings) | other,
                cwd=self._source,
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, within=240, what="the workers serve")

    def kill(self) -> None:
        """Kill the supervisor; all other processes of the gateway then end by themselves."""
        self._child.kill()
        self._child.wait()

    def log(self) -> str:
        """Return the output of the gateway's processes."""
        return self._log.read_text(errors="replace")

    def processes(self) -> dict[str, int]:
        """Return the id of each process, by role and number."""
        text = (self.settings.data_dir / "processes.json").read_bytes()
        found = msgspec.json.decode(text, type=list[Process])
        return {f"{process.role} {process.index}": process.pid for process in found}

    def target(self, key: str) -> Target:
        """Return the target of requests with the API key `key`."""
        headers = (("authorization", f"Bearer {key}"),)
        return Target(host="127.0.0.1", port=self.port, path="/v1/classify", headers=headers)

    def _is_ready(self) -> bool:
        if self._child.poll() is not None:
            raise RuntimeError(self.log())
        if "serving on" not in self.log():
            return False
        # All workers must know the backend, because a connection may go to any of them.
        url = f"http://127.0.0.1:{self.port}/health/ready"
        return all(is_answered(url) for _ in range(16))


def one_backend(url: str, *, backend_id: str = "stub", region: str = "eu") -> dict[str, Any]:
    """Return the section `regions` of a configuration document with one backend."""
    backend = {"id": backend_id, "url": url}
    return {"regions": [{"name": region, "pools": [{"backends": [backend]}]}]}


def add_tenants(ledger_url: str, keys: Mapping[str, str], *, rules: tuple[Rule, ...] = ()) -> None:
    """Write tenants to a ledger, each with one key and these limits; create a missing ledger."""
    with Ledger.create(ledger_url) as ledger:
        for tenant, key in keys.items():
            ledger.accounts.create_tenant(tenant, rules=rules)
            ledger.accounts.create_key(tenant, key_hash=hash_key(key))


@contextlib.contextmanager
def running_gateway(
    folder: Path,
    document: Mapping[str, Any],
    *,
    keys: Mapping[str, str],
    workers: int,
    rules: tuple[Rule, ...] = (),
    state: Valkey | None = None,
    **settings: Any,
) -> Iterator[Gateway]:
    """Run a gateway for tenants with `keys`.

    Without `state`, start a new state Redis for the gateway.
    """
    with contextlib.ExitStack() as stack:
        cache = stack.enter_context(Valkey())
        state = state or stack.enter_context(Valkey("--appendonly", "yes"))
        settings |= {"cache_url": cache.url, "state_url": state.url}
        gateway = Gateway(folder, document, workers=workers, **settings)
        add_tenants(gateway.settings.ledger, keys, rules=rules)
        yield stack.enter_context(gateway)
