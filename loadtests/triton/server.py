"""Runs a real Triton server over the demo's encoder, and kills and stops it."""

import os
import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from loadtests.peers.servers import PEERS, serving
from testing.loopback import get
from testing.ports import free_port

ENCODER = "minilm"
_ROOT = Path(__file__).parents[2]
_PEER = PEERS["triton"]
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


class Triton:
    """Serves the encoder of `models` on a fixed port while entered."""

    def __init__(self, scratch: Path, models: Path) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._repository = scratch / "repository"
        version = self._repository / ENCODER / "1"
        version.mkdir(parents=True)
        shutil.copy(_MODEL, version)
        graph = (models / ENCODER / "1" / "model.onnx").resolve()
        config = _CONFIG.format(name=ENCODER, file=_MODEL.name, width=384, graph=graph)
        (version.parent / "config.pbtxt").write_text(config)
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._running.close()

    def start(self) -> None:
        """Start Triton, and wait until it is ready."""
        command = [str(_PEER.home / "bin" / "python"), *_PEER.command[1:]]
        self._pid = self._running.enter_context(
            serving(
                [*command, str(self._port), str(self._repository)],
                f"{self.url}{_PEER.ready}",
                {"PYTHONPATH": str(_ROOT)},
            )
        )

    def runs(self) -> int:
        """Return how many batches Triton has run since it started."""
        statistics: Any = get(f"{self.url}/v2/models/{ENCODER}/stats").json()
        return int(statistics["model_stats"][0]["execution_count"])

    def kill(self) -> None:
        """Kill Triton and its models' processes by SIGKILL."""
        self.signal(signal.SIGKILL)
        self._running.close()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to Triton and its models' processes, which are a process group."""
        os.killpg(self._pid, number)
