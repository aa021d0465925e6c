"""Runs a peer's server as a process, and reads the processor time of all that it starts."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec

from backends.protocol import Task
from loadtests.generator import Target
from loadtests.machine import busy_seconds
from loadtests.peers.configuration import MODELS, SCRATCH, TASK, PeerConfiguration
from loadtests.peers.servers import Peer
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[2]
_START = 180.0


class PeerFailed(Exception):
    """A peer did not become ready; the message is the end of its output."""


class RunningPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a peer answers, and its first process."""

    target: Target
    pid: int


def is_installed(peer: Peer) -> bool:
    """Tell whether all of the peer's packages are there: `make` says so by a stamp."""
    return (_folder(peer) / ".installed").exists()


@contextlib.contextmanager
def running(peer: Peer, way: PeerConfiguration, models: Path, task: Task) -> Iterator[RunningPeer]:
    """Run a peer over the demo's models.

    Raises:
        PeerFailed: it is not installed, or did not become ready within three minutes.
    """
    port = free_port()
    if not is_installed(peer):
        raise PeerFailed(f"not installed: `make .venv-peers/{peer.environment}/.installed`")
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "output"
        environment = (
            os.environ
            | way.environment()
            | {
                MODELS: str(models.resolve()),
                SCRATCH: scratch,
                TASK: task.value,
                "PYTHONPATH": str(_ROOT),
                "BENTOML_DO_NOT_TRACK": "True",
            }
        )
        with output.open("wb") as log:
            child = subprocess.Popen(
                [str(_folder(peer) / "bin" / peer.command[0]), *peer.command[1:], str(port)],
                cwd=_ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait(child, f"http://127.0.0.1:{port}{peer.ready}", output)
            target = Target(host="127.0.0.1", port=port, path=peer.calls[task].path)
            yield RunningPeer(target=target, pid=child.pid)
        finally:
            _stop(child)


def busy_with_children(pid: int) -> float:
    """Return the processor time of a process and of all below it that still run, in seconds."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
    family = {pid}
    while more := {each for each, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0.0
    for each in family:
        with contextlib.suppress(OSError):
            total += busy_seconds(each)
    return total


def _folder(peer: Peer) -> Path:
    return _ROOT / ".venv-peers" / peer.environment


def _wait(child: subprocess.Popen[bytes], url: str, output: Path) -> None:
    def is_over() -> bool:
        return child.poll() is not None or _answers(url)

    try:
        wait_until(is_over, within=_START, what="it is ready")
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
