"""Runs processes of the product that can be killed, stopped and started again."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadtests.faults.model import write_algorithm, write_revision
from sluicegate.gateway.settings import Settings, environment, process_environment
from sluicegate.wire.protocol import STATE_PATH
from testing.loopback import is_answered
from testing.ports import free_port

_ROOT = Path(__file__).parents[2]
_BASE, _TOKEN = 2e-3, 5.8e-4
"""Seconds that a batch takes, and seconds that each token adds."""
_ROWS, _TOKENS = 16, 10
CAPACITY = _ROWS / (_BASE + _TOKEN * _TOKENS * _ROWS)
"""The most items a second that one backend can compute."""


class Child:
    """A child process that runs a module of the product."""

    def __init__(self, *argv: str, values: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-m", f"sluicegate.{argv[0]}", *argv[1:]]
        self._environment = dict(process_environment()) | dict(values)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if it does not run."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env=self._environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        """Kill the process."""
        self.stop(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal `number` if the process runs, and wait until it has ended."""
        self._send(number)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process by SIGSTOP: it keeps its connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._send(signal.SIGCONT)

    @property
    def pid(self) -> int:
        """The id of the process; 0 if it does not run."""
        return self._process.pid if self._process is not None else 0

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False


def gateway_process(role: str, settings: Settings) -> Child:
    """Return a gateway process for a role, such as `billing`."""
    return Child("gateway", f"run-{role}", values=environment(settings))


class BackendSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specifies a backend with its own model repository."""

    name: str
    region: str
    settings: Mapping[str, str] = {}


class PacedBackend(Child):
    """A backend whose batches take set times, with its model repository."""

    def __init__(
        self,
        spec: BackendSpec,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        has_algorithm: bool = False,
    ) -> None:
        self.spec = spec
        self.models = folder / spec.name
        write_revision(self.models, 1)
        if has_algorithm:
            write_algorithm(self.models)
        self.port = port or free_port()
        self.url = f"http://{host}:{self.port}"
        settings = {
            "provider": "paced",
            "threads": "1",
            "tokenizer_threads": "1",
            "paced_base": str(_BASE),
            "paced_token": str(_TOKEN),
        } | dict(spec.settings)
        super().__init__(
            *("backends", "serve", "--models", str(self.models), "--host", host),
            *("--port", str(self.port), "--region", spec.region, "--id", spec.name),
            values={f"SLUICEGATE_BACKEND_{k.upper()}": v for k, v in settings.items()},
        )

    def is_ready(self) -> bool:
        """Return whether the backend is ready."""
        return is_answered(f"{self.url}{STATE_PATH}", timeout=2.0)
