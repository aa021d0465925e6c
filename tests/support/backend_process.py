"""Runs a backend as a process, and sends it requests."""

import http.client
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from sluicegate.gateway.settings import process_environment
from sluicegate.wire.protocol import (
    CALL_PATH,
    STATE_PATH,
    Call,
    CallItem,
    Done,
    Failed,
    FrameReader,
    ModelInfo,
    Parameters,
    ServingState,
    Task,
)
from testing.waiting import wait_until

SERVE = (sys.executable, "-m", "sluicegate.backends", "serve")


@contextmanager
def serving(
    models: Path,
    port: int,
    *options: str,
    environment: Mapping[str, str] | None = None,
    program: Sequence[str] = SERVE,
) -> Iterator["subprocess.Popen[str]"]:
    command = [*program, "--models", str(models), "--port", str(port), *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(process_environment()) | dict(environment or {}),
    ) as process:
        try:
            wait_until(lambda: process.poll() is not None or is_ready(port), within=180)
            yield process
        finally:
            process.kill()


def request(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300.0)) as connection:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()


def is_ready(port: int) -> bool:
    try:
        return request(port, "GET", "/health/ready")[0] == 200
    except OSError:
        return False


def infos(port: int) -> dict[str, ModelInfo]:
    """Return what the backend says of its models."""
    state = msgspec.msgpack.decode(request(port, "GET", STATE_PATH)[1], type=ServingState)
    return {model.name: model for model in state.models}


def ask(
    port: int, info: ModelInfo, task: Task, parameters: Parameters, items: list[object]
) -> list[Done | Failed]:
    """Call and return the outcomes in the order of the items."""
    call = Call(
        model=info.name,
        revision=info.revision,
        profile=info.profile,
        task=task,
        parameters=msgspec.msgpack.encode(parameters),
        items=[
            CallItem(body=msgspec.msgpack.encode(item), remaining=240.0, scope="t")
            for item in items
        ],
    )
    status, body = request(port, "POST", CALL_PATH, msgspec.msgpack.encode(call))
    assert status == 200, body
    found = [frame for frame in FrameReader().feed(body) if isinstance(frame, Done | Failed)]
    return sorted(found, key=lambda outcome: outcome.index)
