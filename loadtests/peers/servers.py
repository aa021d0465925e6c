"""Lists the peers with the configurations tried, and runs one of them."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import msgspec

from loadtests.generator import Target
from loadtests.harness.ports import free_port
from loadtests.harness.waiting import wait_until
from loadtests.peers.configuration import MODELS, SCRATCH, PeerConfiguration

_ROOT = Path(__file__).parents[2]
_SERVERS = "loadtests/peers"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A comparable server. `command` gets the port as its last argument.

    `ways` are those that are measured: the best found with its own batching, and those without that
    may be the best of any. `body` makes the request of a text, `scores` reads its answer.
    """

    name: str
    label: str
    command: tuple[str, ...]
    path: str
    ready: str
    ways: tuple[PeerConfiguration, ...]
    body: Callable[[str], bytes]
    scores: Callable[[bytes], list[float]]


def _triton_body(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return msgspec.json.encode({"inputs": [tensor]})


def _triton_scores(body: bytes) -> list[float]:
    scores: list[float] = msgspec.json.decode(body)["outputs"][0]["data"]
    return scores


_UNBATCHED = PeerConfiguration(workers=2, threads=1)
# What `--tune` runs of every peer.
TRIED = (
    PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002),
    PeerConfiguration(workers=2, threads=1, batch=16, delay=0.005),
    PeerConfiguration(workers=2, threads=1, batch=32, delay=0.01),
    PeerConfiguration(workers=1, threads=2, batch=16, delay=0.005),
    PeerConfiguration(workers=1, threads=2, batch=32, delay=0.01),
    _UNBATCHED,
    PeerConfiguration(workers=1, threads=2),
)

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="litserve",
            label="LitServe",
            command=("python", f"{_SERVERS}/litserve/server.py"),
            path="/predict",
            ready="/health",
            ways=(PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002), _UNBATCHED),
            body=lambda text: msgspec.json.encode({"text": text}),
            scores=lambda body: msgspec.json.decode(body)["scores"],
        ),
        Peer(
            name="bentoml",
            label="BentoML",
            command=(
                *("bentoml", "serve", "loadtests.peers.bentoml.server:SentimentService"),
                *("--host", "127.0.0.1", "--port"),
            ),
            path="/classify",
            ready="/readyz",
            ways=(
                PeerConfiguration(workers=1, threads=2, batch=32),
                _UNBATCHED,
                PeerConfiguration(workers=1, threads=2),
            ),
            body=lambda text: msgspec.json.encode({"texts": [text]}),
            scores=lambda body: msgspec.json.decode(body)[0],
        ),
        Peer(
            name="triton",
            label="Triton (Python backend)",
            command=("python", f"{_SERVERS}/triton/server.py"),
            path="/v2/models/sentiment/infer",
            ready="/v2/health/ready",
            ways=(PeerConfiguration(workers=2, threads=1, batch=8, delay=0.002), _UNBATCHED),
            body=_triton_body,
            scores=_triton_scores,
        ),
    )
}


class PeerFailed(Exception):
    """A peer did not become ready; the message is the end of its output."""


@contextlib.contextmanager
def running(peer: Peer, way: PeerConfiguration, models: Path) -> Iterator[Target]:
    """Run a peer over the demo's models; yields where it answers.

    Raises:
        PeerFailed: it did not become ready within a minute.
    """
    port = free_port()
    program = _ROOT / ".venv-peers" / peer.name / "bin" / peer.command[0]
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "output"
        environment = (
            os.environ
            | way.environment()
            | {
                MODELS: str(models.resolve()),
                SCRATCH: scratch,
                "PYTHONPATH": str(_ROOT),
                "BENTOML_DO_NOT_TRACK": "True",
            }
        )
        with output.open("wb") as log:
            child = subprocess.Popen(
                [str(program), *peer.command[1:], str(port)],
                cwd=_ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(child, f"http://127.0.0.1:{port}{peer.ready}", output)
            yield Target(host="127.0.0.1", port=port, path=peer.path)
        finally:
            _stop(child)


def _wait(child: subprocess.Popen[bytes], url: str, output: Path) -> None:
    try:
        wait_until(lambda: child.poll() is not None or _answers(url), within=60, what="it is ready")
    except AssertionError as error:
        raise PeerFailed(f"{error}: {_end(output)}") from error
    if child.poll() is not None:
        raise PeerFailed(f"it ended with status {child.returncode}: {_end(output)}")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def _end(output: Path) -> str:
    return " ".join(output.read_text(errors="replace").split())[-300:]


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop it with its workers, which share its process group."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=10)
