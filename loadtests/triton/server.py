"""Runs a real Triton server over an encoder, and kills and stops it."""

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from testing.loopback import get, is_answered
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_HOME = _ROOT / ".venv-peers" / "triton"
_MODEL = Path(__file__).parent / "encoder.py"
_CONFIG = """
name: "{name}"
backend: "python"
max_batch_size: 16
default_model_filename: "{file}"
input [
  {{ name: "input_ids", data_type: TYPE_INT32, dims: [-1] }},
  {{ name: "attention_mask", data_type: TYPE_INT32, dims: [-1] }},
  {{ name: "token_type_ids", data_type: TYPE_INT32, dims: [-1] }}
]
output [
  {{ name: "pooled", data_type: TYPE_FP32, dims: [{width}] }},
  {{ name: "tokens", data_type: TYPE_FP32, dims: [-1, {width}] }}
]
instance_group [{{ kind: KIND_CPU, count: 2 }}]
parameters [{{ key: "graph", value: {{ string_value: "{graph}" }} }}]
"""


def is_installed() -> bool:
    """Return whether `make check NAME=triton` or `make bench NAME=peers` has installed Triton."""
    return (_HOME / ".installed").exists()


class Triton:
    """Serves a graph as the model `name` on a fixed port while entered."""

    def __init__(self, scratch: Path, *, name: str, graph: Path, width: int) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._name = name
        self._scratch = scratch
        version = scratch / "repository" / name / "1"
        version.mkdir(parents=True)
        shutil.copy(_MODEL, version)
        config = _CONFIG.format(name=name, file=_MODEL.name, width=width, graph=graph.resolve())
        (version.parent / "config.pbtxt").write_text(config)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._wait()
        self.kill()

    def start(self) -> None:
        """Start Triton, and wait until it is ready."""
        arguments = [str(self._scratch / "repository"), str(self.port), str(self._scratch)]
        with (self._scratch / "output").open("wb") as output:
            child = self._child = subprocess.Popen(
                [str(_HOME / "bin" / "python"), "-m", "loadtests.triton.serve", *arguments],
                cwd=_ROOT,
                env=dict(os.environ) | {"PYTHONPATH": str(_ROOT)},
                stdout=output,
                stderr=subprocess.STDOUT,
                # Triton and its models' processes are a process group.
                start_new_session=True,
            )
        url = f"{self.url}/v2/health/ready"
        wait_until(lambda: child.poll() is not None or is_answered(url), what="Triton is ready")
        if child.poll() is not None:
            said = (self._scratch / "output").read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Triton has ended; it said: {said}")

    def runs(self) -> int:
        """Return how many batches Triton has run since it started."""
        statistics: Any = get(f"{self.url}/v2/models/{self._name}/stats").json()
        return int(statistics["model_stats"][0]["execution_count"])

    def kill(self) -> None:
        """Kill Triton and its models' processes by SIGKILL."""
        self.signal(signal.SIGKILL)
        self._wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to Triton and its models' processes."""
        if self._child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)

    def _wait(self) -> None:
        if self._child is not None:
            self._child.wait(timeout=15)
