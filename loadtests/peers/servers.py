"""Lists the peers with the configurations tried, and runs their servers."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from backends.protocol import Task
from loadtests.generator import Target
from loadtests.peers.configuration import MODELS, SCRATCH, TASK, PeerConfiguration
from loadtests.rivals import nginx
from testing.loopback import is_answered
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_SERVERS = "loadtests/peers"
_START = 180.0
_PIN = re.compile(r"^([\w.-]+)==([\w.+-]+)", re.MULTILINE)
# The packages of each environment that a figure depends on.
_PACKAGES = {
    "bentoml": ("bentoml", "onnxruntime"),
    "bettertransformer": ("infinity-emb", "optimum", "torch"),
    "infinity": ("infinity-emb", "litserve", "onnxruntime", "openvino", "torch"),
    "litellm": ("litellm",),
    "litserve": ("litserve", "onnxruntime"),
    "triton": ("nvidia-pytriton", "onnxruntime"),
}


class PeerFailed(Exception):
    """A peer did not become ready; the message is the end of its output."""


class PeerCall(msgspec.Struct, frozen=True, kw_only=True):
    """Makes the request of a text, and reads the answer's vector, or scores (negative first)."""

    path: str
    body: Callable[[str], bytes]
    values: Callable[[bytes], list[float]]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A comparable server. `command` gets the port as its last argument.

    `ways` are those that are measured: the best found with its own batching, and those without that
    may be the best of any. `tried` is what `--tune` runs. `environment` is the folder of its
    packages in `.venv-peers`.
    """

    name: str
    label: str
    environment: str
    command: tuple[str, ...]
    ready: str = "/health"
    calls: Mapping[Task, PeerCall]
    ways: tuple[PeerConfiguration, ...]
    tried: tuple[PeerConfiguration, ...]


def _for_both(call: PeerCall) -> dict[Task, PeerCall]:
    return {Task.CLASSIFY: call, Task.EMBED: call}


def _triton_body(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


def _triton_values(body: bytes) -> list[float]:
    values: list[float] = msgspec.json.decode(body)["outputs"][0]["data"]
    return values


def _infinity_body(text: str) -> bytes:
    return msgspec.json.encode({"model": "model", "input": [text]})


def _infinity_scores(body: bytes) -> list[float]:
    (labels,) = msgspec.json.decode(body)["data"]
    scores = {each["label"]: each["score"] for each in labels}
    return [scores["negative"], scores["positive"]]


_UNBATCHED = PeerConfiguration(workers=2, threads=1)
_SMALL = PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002)
_TRIED = (
    _SMALL,
    PeerConfiguration(workers=2, threads=1, batch=16, delay=0.005),
    PeerConfiguration(workers=2, threads=1, batch=32, delay=0.01),
    PeerConfiguration(workers=1, threads=2, batch=16, delay=0.005),
    PeerConfiguration(workers=1, threads=2, batch=32, delay=0.01),
    _UNBATCHED,
    PeerConfiguration(workers=1, threads=2),
)


def _infinity(batch: int, options: str, *, threads: int = 2) -> PeerConfiguration:
    """Infinity is one process, whose runtime has threads."""
    return PeerConfiguration(workers=1, threads=threads, batch=batch, options=options)


_TORCH, _COMPILED = "--engine torch --no-compile", "--engine torch --compile"
_ONNX = "--engine optimum --onnx-disable-optimize"
_FUSED = "--engine optimum --no-onnx-disable-optimize"


_LITSERVE = _for_both(
    PeerCall(
        path="/predict",
        body=lambda text: msgspec.json.encode({"text": text}),
        values=lambda body: msgspec.json.decode(body)["values"],
    )
)
_INFINITY = {
    Task.CLASSIFY: PeerCall(path="/classify", body=_infinity_body, values=_infinity_scores),
    Task.EMBED: PeerCall(
        path="/embeddings",
        body=_infinity_body,
        values=lambda body: msgspec.json.decode(body)["data"][0]["embedding"],
    ),
}


def _in_bf16(way: PeerConfiguration) -> PeerConfiguration:
    return replace(way, precision="bf16")


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="infinity",
            label="Infinity",
            environment="infinity",
            command=("python", f"{_SERVERS}/infinity/server.py"),
            calls=_INFINITY,
            ways=(_infinity(32, _TORCH), _infinity(32, _FUSED)),
            tried=(
                *(
                    _infinity(batch, options)
                    for options in (_TORCH, _COMPILED, _ONNX, _FUSED)
                    for batch in (8, 32)
                ),
                # A thread waits for no other: what it takes on a machine that does other work.
                *(_infinity(32, options, threads=1) for options in (_TORCH, _FUSED)),
            ),
        ),
        Peer(
            name="bettertransformer",
            label="Infinity with BetterTransformer",
            environment="bettertransformer",
            command=("python", f"{_SERVERS}/infinity/server.py"),
            calls=_INFINITY,
            ways=(_infinity(32, _TORCH), _infinity(32, _TORCH, threads=1)),
            tried=tuple(
                _infinity(batch, _TORCH, threads=threads) for batch in (8, 32) for threads in (1, 2)
            ),
        ),
        Peer(
            name="openvino",
            label="OpenVINO (LitServe)",
            environment="infinity",
            command=("python", f"{_SERVERS}/openvino/server.py"),
            calls=_LITSERVE,
            ways=(_SMALL, _UNBATCHED, _in_bf16(_SMALL), _in_bf16(_UNBATCHED)),
            tried=(*_TRIED, *map(_in_bf16, _TRIED)),
        ),
        Peer(
            name="litserve",
            label="LitServe",
            environment="litserve",
            command=("python", f"{_SERVERS}/litserve/server.py"),
            calls=_LITSERVE,
            ways=(_SMALL, _UNBATCHED),
            tried=_TRIED,
        ),
        Peer(
            name="bentoml",
            label="BentoML",
            environment="bentoml",
            command=(
                *("bentoml", "serve", "loadtests.peers.bentoml.server:TextService"),
                *("--host", "127.0.0.1", "--port"),
            ),
            ready="/readyz",
            calls=_for_both(
                PeerCall(
                    path="/predict",
                    body=lambda text: msgspec.json.encode({"texts": [text]}),
                    values=lambda body: msgspec.json.decode(body)[0],
                )
            ),
            ways=(
                PeerConfiguration(workers=1, threads=2, batch=32),
                _UNBATCHED,
                PeerConfiguration(workers=1, threads=2),
            ),
            tried=_TRIED,
        ),
        Peer(
            name="triton",
            label="Triton (Python backend)",
            environment="triton",
            command=("python", f"{_SERVERS}/triton/server.py"),
            ready="/v2/health/ready",
            calls=_for_both(
                PeerCall(path="/v2/models/model/infer", body=_triton_body, values=_triton_values)
            ),
            ways=(_SMALL, _UNBATCHED),
            tried=_TRIED,
        ),
    )
}


def is_installed(peer: Peer) -> bool:
    """Tell whether all of the peer's packages are there: `make` says so by a stamp."""
    return (_folder(peer) / ".installed").exists()


@contextlib.contextmanager
def running(
    peer: Peer, way: PeerConfiguration, models: Path, task: Task
) -> Iterator[tuple[Target, int]]:
    """Run a peer over the demo's models; yield where it answers, and its first process.

    Raises:
        PeerFailed: it is not installed, or did not become ready within three minutes.
    """
    if not is_installed(peer):
        raise PeerFailed(f"not installed: `make .venv-peers/{peer.environment}/.installed`")
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "output"
        given = {MODELS: str(models.resolve()), SCRATCH: scratch, TASK: task.value}
        given |= {"PYTHONPATH": str(_ROOT), "BENTOML_DO_NOT_TRACK": "True"}
        with output.open("wb") as log:
            child = subprocess.Popen(
                [str(_folder(peer) / "bin" / peer.command[0]), *peer.command[1:], str(port)],
                cwd=_ROOT,
                env=os.environ | way.environment() | given,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(child, f"http://127.0.0.1:{port}{peer.ready}", output)
            yield Target(host="127.0.0.1", port=port, path=peer.calls[task].path), child.pid
        finally:
            # Its workers share its process group.
            for number in (signal.SIGINT, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=10)


def installed_versions() -> dict[str, str]:
    """Return the versions of nginx and of the packages in each peer's environment.

    They are those of the hashed lists, from which `make` installs.
    """
    versions = {}
    if nginx.is_installed():
        command = ["nginx", "-v"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        versions["nginx"] = done.stderr.rpartition("/")[2].strip()
    for environment, packages in _PACKAGES.items():
        if (_ROOT / ".venv-peers" / environment / ".installed").exists():
            text = (_ROOT / _SERVERS / environment / "requirements.txt").read_text()
            pins = dict(_PIN.findall(text))
            versions |= {f"{environment}: {name}": pins[name] for name in packages if name in pins}
    return versions


def _folder(peer: Peer) -> Path:
    return _ROOT / ".venv-peers" / peer.environment


def _wait(child: subprocess.Popen[bytes], url: str, output: Path) -> None:
    def said() -> str:
        return " ".join(output.read_text(errors="replace").split())[-300:]

    try:
        wait_until(lambda: child.poll() is not None or is_answered(url), within=_START)
    except AssertionError as error:
        raise PeerFailed(f"it is not ready after {_START:g} s: {said()}") from error
    if child.poll() is not None:
        raise PeerFailed(f"it ended with status {child.returncode}: {said()}")
