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
from testing.loopback import is_answered
from testing.ports import free_port
from testing.waiting import wait_until
from wire.protocol import Task

_ROOT = Path(__file__).parents[2]
_START = 180.0
_UNBATCHED = PeerConfiguration(workers=2, threads=1)
_TORCH = "torch --no-compile"
_SMALL = PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002)
_ONE_PROCESS = PeerConfiguration(workers=1, threads=2)


class PeerFailed(Exception):
    """A peer did not become ready; the message has the end of its output."""


class PeerCall(msgspec.Struct, frozen=True):
    """Makes a request for a text, and reads the vector, or the scores (negative first)."""

    path: str
    body: Callable[[str], object]
    values: Callable[[Any], list[float]]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A comparable server. `command` gets the port as its last argument.

    `ways` are the configurations that are measured: the best one that was found with the server's
    own batching, and configurations without batching that may be better. `environment` is the
    folder of the server's packages in `.venv-peers`.
    """

    label: str
    environment: str
    command: tuple[str, ...]
    ready: str = "/health"
    calls: Mapping[Task, PeerCall]
    ways: tuple[PeerConfiguration, ...]

    @property
    def home(self) -> Path:
        """The folder of the peer's packages."""
        return _ROOT / ".venv-peers" / self.environment

    @property
    def is_installed(self) -> bool:
        """Whether all of the server's packages are installed, as a stamp file of `make` shows."""
        return (self.home / ".installed").exists()


def _infinity(engine: str, threads: int = 2) -> PeerConfiguration:
    """Return a configuration of Infinity: one process, whose runtime has `threads` threads."""
    return PeerConfiguration(workers=1, threads=threads, batch=32, options=f"--engine {engine}")


def _program(name: str) -> tuple[str, ...]:
    return "python", f"loadtests/peers/{name}/server.py"


def _for_both(call: PeerCall) -> dict[Task, PeerCall]:
    return {Task.CLASSIFY: call, Task.EMBED: call}


def _infinity_body(text: str) -> object:
    return {"model": "model", "input": [text]}


def _infinity_scores(found: Any) -> list[float]:
    scores = {each["label"]: each["score"] for each in found["data"][0]}
    return [scores["negative"], scores["positive"]]


def _tensor(text: str) -> object:
    return {"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}


_INFINITY = {
    Task.CLASSIFY: PeerCall("/classify", _infinity_body, _infinity_scores),
    Task.EMBED: PeerCall(
        "/embeddings", _infinity_body, lambda found: found["data"][0]["embedding"]
    ),
}
_LITSERVE = _for_both(
    PeerCall("/predict", lambda text: {"text": text}, lambda found: found["values"])
)
PEERS = {
    "triton": Peer(
        label="Triton (Python backend)",
        environment="triton",
        command=_program("triton"),
        ready="/v2/health/ready",
        calls=_for_both(
            PeerCall("/v2/models/model/infer", _tensor, lambda found: found["outputs"][0]["data"])
        ),
        ways=(_SMALL, _UNBATCHED),
    ),
    "litserve": Peer(
        label="LitServe",
        environment="litserve",
        command=_program("litserve"),
        calls=_LITSERVE,
        ways=(_SMALL, _UNBATCHED),
    ),
    "openvino": Peer(
        label="OpenVINO (LitServe)",
        environment="infinity",
        command=_program("openvino"),
        calls=_LITSERVE,
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
        calls=_for_both(
            PeerCall("/predict", lambda text: {"texts": [text]}, lambda found: found[0])
        ),
        ways=(replace(_ONE_PROCESS, batch=32), _UNBATCHED, _ONE_PROCESS),
    ),
    "infinity": Peer(
        label="Infinity",
        environment="infinity",
        command=_program("infinity"),
        calls=_INFINITY,
        ways=(_infinity(_TORCH), _infinity("optimum --no-onnx-disable-optimize")),
    ),
    "bettertransformer": Peer(
        label="Infinity with BetterTransformer",
        environment="bettertransformer",
        command=_program("infinity"),
        calls=_INFINITY,
        ways=(_infinity(_TORCH), _infinity(_TORCH, threads=1)),
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
            yield Target(host="127.0.0.1", port=port, path=peer.calls[task].path), pid


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
