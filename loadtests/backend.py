"""Runs a backend as a process and builds calls for it."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from backends.protocol import (
    CALL_PATH,
    Call,
    CallItem,
    ClassifyParameters,
    EmbedParameters,
    ModelInfo,
    ServingState,
    Task,
)
from loadtests.generator import Outcome, Target, closed_loop
from testing.loopback import get, is_answered
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]


class RunningBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A running backend."""

    port: int
    pid: int

    @property
    def target(self) -> Target:
        """The target of calls."""
        return Target(host="127.0.0.1", port=self.port, path=CALL_PATH)

    def model(self, name: str) -> ModelInfo:
        """Return its description of a model."""
        content = get(f"http://127.0.0.1:{self.port}/v1/state").content
        state = msgspec.msgpack.decode(content, type=ServingState)
        return next(model for model in state.models if model.name == name)

    def counter(self, name: str, encoder: str) -> float:
        """Read one of its metrics for an encoder."""
        wanted = f'sluicegate_backend_{name}{{encoder="{encoder}"}} '
        for line in get(f"http://127.0.0.1:{self.port}/metrics").text.splitlines():
            if line.startswith(wanted):
                return float(line.removeprefix(wanted))
        raise ValueError(name)


@contextlib.contextmanager
def backend(models: Path, **settings: str) -> Iterator[RunningBackend]:
    """Run a backend over `models`, with `settings` in its environment."""
    port = free_port()
    environment = {f"SLUICEGATE_BACKEND_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "backends", "serve", "--models", str(models)]
    child = subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=_ROOT,
        env=dict(os.environ) | environment,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}/health/ready"
        wait_until(lambda: is_answered(url), within=60, what="the backend is ready")
        yield RunningBackend(port=port, pid=child.pid)
    finally:
        child.terminate()
        child.wait()


def calls(
    texts: Iterable[str],
    info: ModelInfo,
    *,
    task: Task = Task.CLASSIFY,
    remaining: float = 30.0,
    scope: str = "tenant:bench",
) -> Iterator[bytes]:
    """Yield a call of one item for each text."""
    parameters = msgspec.msgpack.encode(
        EmbedParameters() if task is Task.EMBED else ClassifyParameters()
    )
    for text in texts:
        item = CallItem(body=msgspec.msgpack.encode(text), remaining=remaining, scope=scope)
        call = Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=task,
            parameters=parameters,
            items=[item],
        )
        yield msgspec.msgpack.encode(call)


def run_closed(
    running: RunningBackend, bodies: Iterator[bytes], *, connections: int, duration: float
) -> Outcome:
    """Run a closed loop against it."""
    return asyncio.run(
        closed_loop(running.target, bodies, connections=connections, duration=duration)
    )
