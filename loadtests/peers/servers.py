"""Lists the peers with their configurations, and runs their servers."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: bodies are JSON

import msgspec

from loadtests.generator import Target
from loadtests.peers.configuration import MODELS, SCRATCH, TASK, PeerConfiguration
from sluicegate.wire.protocol import Task
from testing.loopback import is_answered
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_START = 180.0
_UNBATCHED = PeerConfiguration(workers=2, threads=1)
_SMALL = PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002)
_ONE_PROCESS = PeerConfiguration(workers=1, threads=2)
_TORCH = PeerConfiguration(workers=1, threads=2, batch=32, options="--engine torch --no-compile")


class PeerFailed(Exception):
    """A peer did not become ready; the message has the end of its output."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A comparable server. `command` gets the port as its last argument.

    `body` makes a request for a text. `values` reads the vector, or the scores (negative first).
    `ways` are the configurations that are measured: the best one that was found with the server's
    own batching, and configurations without batching that may be better. `environment` is the
    folder of the server's packages in `.venv-peers`.
    """

    label: str
    environment: str
    command: tuple[str, ...]
    ready: str = "/health"
    classify: str = "/predict"
    embed: str = "/predict"
    body: Callable[[str], object]
    values: Callable[[Any], list[float]]
    ways: tuple[PeerConfiguration, ...]

    @property
    def home(self) -> Path:
        """The folder of the peer's packages."""
        return _ROOT / ".venv-peers" / self.environment

    @property
    def is_installed(self) -> bool:
        """Whether all of the server's packages are installed, as a stamp file of `make` shows."""
        return (self.home / ".installed").exists()


def _program(name: str) -> tuple[str, ...]:
    return "python", f"loadtests/peers/{name}/server.py"


def _tensor(text: str) -> object:
    return {"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}


def _infinity_values(found: Any) -> list[float]:
    first = found["data"][0]
    if isinstance(first, dict):
        return list(first["embedding"])
    scores = {each["label"]: each["score"] for each in first}
    return [scores["negative"], scores["positive"]]


_LITSERVE = Peer(
    label="LitServe",
    environment="litserve",
    command=_program("litserve"),
    body=lambda text: {"text": text},
    values=lambda found: found["values"],
    ways=(_SMALL, _UNBATCHED),
)
PEERS = {
    "triton": Peer(
        label="Triton (Python backend)",
        environment="triton",
        command=_program("triton"),
        ready="/v2/health/ready",
        classify="/v2/models/model/infer",
        embed="/v2/models/model/infer",
        body=_tensor,
        values=lambda found: found["outputs"][0]["data"],
        ways=(_SMALL, _UNBATCHED),
    ),
    "litserve": _LITSERVE,
    "openvino": msgspec.structs.replace(
        _LITSERVE,
        label="OpenVINO (LitServe)",
        environment="infinity",
        command=_program("openvino"),
        ways=tuple(
            replace(way, precision=precision)
            for precision in ("fp32", "bf16")
            for way in (_SMALL, _UNBATCHED)
        ),
    ),
    "bentoml": Peer(
        label="BentoML",
        environment="bentoml",
        command=(
            *("bentoml", "serve", "loadtests.peers.bentoml.server:TextService"),
            *("--host", "127.0.0.1", "--port"),
        ),
        ready="/readyz",
        body=lambda text: {"texts": [text]},
        values=lambda found: found[0],
        ways=(replace(_ONE_PROCESS, batch=32), _UNBATCHED, _ONE_PROCESS),
    ),
    "infinity": Peer(
        label="Infinity",
        environment="infinity",
        command=_program("infinity"),
        classify="/classify",
        embed="/embeddings",
        body=lambda text: {"model": "model", "input": [text]},
        values=_infinity_values,
        ways=(_TORCH, replace(_TORCH, options="--engine optimum --no-onnx-disable-optimize")),
    ),
}
"""The fastest peer comes first: the benchmark of mixed texts takes the first that is installed."""


@contextlib.contextmanager
def running(
    peer: Peer, way: PeerConfiguration, models: Path, task: Task
) -> Iterator[tuple[Target, int]]:
    """Run a peer over the demo's models; yield the URL for requests, and its first process.

    Raises:
        PeerFailed: the peer is not installed, or did not become ready within three minutes.
    """
    if not peer.is_installed:
        raise PeerFailed(f"not installed: `make .venv-peers/{peer.environment}/.installed`")
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        given = {MODELS: str(models.resolve()), SCRATCH: scratch, TASK: task.value}
        given |= {"PYTHONPATH": str(_ROOT), "BENTOML_DO_NOT_TRACK": "True"}
        command = [str(peer.home / "bin" / peer.command[0]), *peer.command[1:], str(port)]
        url = f"http://127.0.0.1:{port}{peer.ready}"
        with serving(command, url, way.environment() | given) as pid:
            path = peer.classify if task is Task.CLASSIFY else peer.embed
            yield Target(host="127.0.0.1", port=port, path=path), pid


@contextlib.contextmanager
def serving(command: Sequence[str], url: str, environment: Mapping[str, str]) -> Iterator[int]:
    """Run a server; yield its process once `url` answers.

    Raises:
        PeerFailed: the server ended, or did not become ready within three minutes.
    """
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with contextlib.suppress(AssertionError):
                wait_until(lambda: child.poll() is not None or is_answered(url), within=_START)
            if child.poll() is not None or not is_answered(url):
                said = os.pread(output.fileno(), 1 << 24, 0).decode(errors="replace").split()
                status = f"ended with status {child.returncode}" if child.returncode else "is late"
                raise PeerFailed(f"it {status}: {' '.join(said)[-300:]}")
            yield child.pid
        finally:
            # The server's workers are in its process group.
            for number in (signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=10)
