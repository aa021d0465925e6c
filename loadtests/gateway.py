"""Runs `sluicegate gateway` as a process with its own document and settings."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self  # Any: sections of a document

import msgspec

from gateway.settings import Settings, environment, process_environment
from loadtests.generator import Target
from testing.loopback import is_answered
from testing.ports import free_port
from testing.system import Process
from testing.waiting import wait_until

# On a machine that is busy otherwise; what a stop takes is measured elsewhere.
_STOPS_WITHIN = 300.0


class Gateway:
    """Runs a gateway of `workers` workers while entered; all its processes can be killed."""

    def __init__(
        self,
        folder: Path,
        document: Mapping[str, Any],
        *,
        workers: int,
        admin: bool = False,
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
        self._workers = workers
        self._admin = admin
        self._log = folder / "log"
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._child is not None:
            self._child.terminate()
            self._child.wait(_STOPS_WITHIN)

    def start(self) -> None:
        """Start it, and return when all workers know the backends."""
        command = [sys.executable, "-m", "gateway", "gateway"]
        command += [] if self._admin else ["--no-admin"]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [*command, "--workers", str(self._workers)],
                env=dict(process_environment()) | environment(self.settings),
                stdout=log,
                stderr=log,
            )
        wait_until(self._is_ready, within=240, what="the workers serve")

    def kill(self) -> None:
        """Kill its supervisor, with which all its processes end."""
        if self._child is not None:
            os.kill(self._child.pid, signal.SIGKILL)
            self._child.wait()
            self._child = None

    def log(self) -> str:
        """Return the output of its processes."""
        return self._log.read_text(errors="replace")

    def processes(self) -> dict[str, int]:
        """Return the id of each process, by its role and number."""
        text = (self.settings.data_dir / "processes.json").read_bytes()
        found = msgspec.json.decode(text, type=list[Process])
        return {f"{process.role} {process.index}": process.pid for process in found}

    def target(self, key: str) -> Target:
        """Return where the owner of `key` sends requests."""
        headers = (("authorization", f"Bearer {key}"),)
        return Target(host="127.0.0.1", port=self.port, path="/v1/classify", headers=headers)

    def _is_ready(self) -> bool:
        if self._child is None or self._child.poll() is not None:
            raise RuntimeError(self._log.read_text())
        if "serving on" not in self._log.read_text():
            return False
        # Whichever worker a connection goes to: all of them must know the backend.
        url = f"http://127.0.0.1:{self.port}/health/ready"
        return all(is_answered(url) for _ in range(16))
