"""Runs a backend of declared speed as a process, behind a proxy."""

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import msgspec

from backends.protocol import RELOAD_PATH, STATE_PATH
from gateway.settings import process_environment
from loadtests.faults.model import MODEL, ModelOracle, write_revision
from loadtests.faults.proxy import FaultyProxy
from testing.loopback import is_answered, no_authorities
from testing.ports import free_port

_ROOT = Path(__file__).parents[2]
BASE, TOKEN = 2e-3, 5.8e-4
"""Seconds that a batch takes, and seconds that each token adds."""
_ROWS, _TOKENS = 16, 10
CAPACITY = _ROWS / (BASE + TOKEN * _TOKENS * _ROWS)
"""The most items a second that a backend can compute."""


class BackendSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Specifies a backend with a repository of its own; `slower` times the pace."""

    name: str
    region: str
    slower: float = 1.0
    overflow: bool = False
    settings: Mapping[str, str] = {}


class PacedBackend:
    """Runs a backend of declared speed, with its repository and the proxy before it."""

    def __init__(
        self,
        spec: BackendSpec,
        folder: Path,
        write_models: Callable[[Path], None] = ModelOracle.write_models,
    ) -> None:
        self.spec = spec
        self.models = folder / spec.name
        write_models(self.models)
        self.port = free_port()
        self.proxy = FaultyProxy(self.port, seed=len(spec.name))
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, if it does not run."""
        if self._child is not None:
            return
        settings = {
            "provider": "paced",
            "threads": "1",
            "tokenizer_threads": "1",
            "paced_base": str(BASE * self.spec.slower),
            "paced_token": str(TOKEN * self.spec.slower),
        } | dict(self.spec.settings)
        command = [sys.executable, "-m", "backends", "serve", "--models", str(self.models)]
        command += ["--port", str(self.port), "--region", self.spec.region, "--id", self.spec.name]
        named = {f"SLUICEGATE_BACKEND_{k.upper()}": v for k, v in settings.items()}
        self._child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=dict(process_environment()) | named,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        """Kill the process."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None

    def pause(self) -> None:
        """Stop the process: it keeps its connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send_signal(number)

    @property
    def pid(self) -> int:
        """The id of the process, 0 if there is none."""
        return self._child.pid if self._child is not None else 0

    def is_ready(self) -> bool:
        """Return whether the process answers."""
        return is_answered(f"http://127.0.0.1:{self.port}{STATE_PATH}", timeout=2.0)

    def change_revision(self) -> None:
        """Switch to a further revision of the model."""
        write_revision(self.models, 1 + len(list((self.models / MODEL).iterdir())))
        with httpx.Client(timeout=60.0, verify=no_authorities()) as client:
            client.post(f"http://127.0.0.1:{self.port}{RELOAD_PATH}").raise_for_status()
