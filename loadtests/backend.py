"""Runs a backend as a process and builds calls for it."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any  # Any: the items of all tasks

import msgspec

from loadtests.generator import Target
from sluicegate.wire.protocol import (
    CALL_PATH,
    Call,
    CallItem,
    ClassifyParameters,
    EmbedParameters,
    InferParameters,
    ModelInfo,
    ServingState,
    Task,
)
from testing.loopback import get, is_answered
from testing.ports import free_port
from testing.waiting import wait_until

_ROOT = Path(__file__).parents[1]
_PARAMETERS = {
    Task.CLASSIFY: ClassifyParameters(),
    Task.EMBED: EmbedParameters(),
    Task.INFER: InferParameters(),
}


class RunningBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A running backend process."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """The URL at which the backend listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def target(self) -> Target:
        """The target of calls to this backend."""
        return Target(host="127.0.0.1", port=self.port, path=CALL_PATH)

    def model(self, name: str) -> ModelInfo:
        """Return the backend's description of a model."""
        state = msgspec.msgpack.decode(
            get(f"{self.url}/v1/state", timeout=60).content, type=ServingState
        )
        return next(model for model in state.models if model.name == name)

    def counter(self, name: str, encoder: str) -> float:
        """Read one of the backend's metrics for an encoder."""
        wanted = f'sluicegate_backend_{name}{{encoder="{encoder}"}} '
        for line in get(f"{self.url}/metrics", timeout=60).text.splitlines():
            if line.startswith(wanted):
                return float(line.removeprefix(wanted))
        raise ValueError(name)


@contextlib.contextmanager
def backend(models: Path, within: float = 240.0, /, **settings: str) -> Iterator[RunningBackend]:
    """Run a backend over `models` with `settings` in its environment; yield it once it is ready."""
    port = free_port()
    environment = {f"SLUICEGATE_BACKEND_{name.upper()}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "sluicegate.backends", "serve", "--models", str(models)]
    with subprocess.Popen(
        [*command, "--port", str(port)],
        cwd=_ROOT,
        env=dict(os.environ) | environment,
        stderr=subprocess.DEVNULL,
    ) as child:
        running = RunningBackend(port=port, pid=child.pid)
        ready = f"{running.url}/health/ready"
        try:
            wait_until(lambda: is_answered(ready), within=within, what="the backend is ready")
            yield running
        finally:
            child.terminate()


def call(
    items: Iterable[Any],
    info: ModelInfo,
    *,
    task: Task = Task.CLASSIFY,
    parameters: Any = None,
    remaining: float = 30.0,
) -> bytes:
    """Return one call of all items, by default with the task's default parameters."""
    encode = msgspec.msgpack.encode
    scope = "tenant:bench"
    return encode(
        Call(
            model=info.name,
            revision=info.revision,
            profile=info.profile,
            task=task,
            parameters=encode(parameters or _PARAMETERS[task]),
            items=[CallItem(body=encode(item), remaining=remaining, scope=scope) for item in items],
        )
    )


def calls(items: Iterable[Any], info: ModelInfo, **options: Any) -> Iterator[bytes]:
    """Yield one call for each item, with the same options as `call`."""
    for item in items:
        yield call([item], info, **options)
