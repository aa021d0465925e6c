"""A backend whose GPU is lost ends at once, and its items are answered elsewhere."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.settings import process_environment
from sluicegate.gateway.supervisor.probes import probe_http
from sluicegate.gateway.supervisor.spawn import Spawner
from sluicegate.gateway.supervisor.spec import ProcessRole, ProcessSpec
from sluicegate.gateway.supervisor.supervisor import Supervisor
from sluicegate.wire.protocol import STATE_PATH, GpuState, ServingState
from testing.model_repository import write_repository
from testing.ports import free_port
from testing.raw_http import KEY
from testing.valkey import Valkey
from testing.waiting import until, wait_until
from tests.support.backend_process import is_ready, request, serving
from tests.support.gpu_library import LOST, FakeDriver, FakeGpu
from tests.support.steady_load import SteadyLoad
from tests.support.worker import running_worker

pytestmark = pytest.mark.anyio
PROGRAM = (sys.executable, "-m", "tests.support.gpu_backend")
CARDS = [FakeGpu("GPU-1"), FakeGpu("GPU-2")]
_BODY = msgspec.json.encode({"model": "mood", "input": ["a good film"]})
_HEAD = f"POST /v1/classify HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n"
REQUEST = f"{_HEAD}Content-Length: {len(_BODY)}\r\n\r\n".encode() + _BODY


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    driver = FakeDriver(tmp_path)
    driver.show(CARDS)
    return driver


def gpu_of(port: int) -> GpuState | None:
    body = request(port, "GET", STATE_PATH)[1]
    return msgspec.msgpack.decode(body, type=ServingState).gpu


def test_a_backend_ends_when_its_gpu_is_lost(tmp_path: Path, driver: FakeDriver) -> None:
    models, port = write_repository(tmp_path / "models", real=True), free_port()
    environment = {**driver.environment, "CUDA_VISIBLE_DEVICES": "GPU-2"}
    with serving(models, port, environment=environment, program=PROGRAM) as process:
        wait_until(lambda: gpu_of(port) is not None, within=60)
        gpu = gpu_of(port)
        smaller = CARDS[1]._replace(memory_bytes=1000)
        driver.show([CARDS[0]._replace(code=LOST), smaller])
        wait_until(lambda: (of := gpu_of(port)) is not None and of.total_bytes == 1000, within=60)
        assert process.poll() is None

        driver.show([CARDS[0], CARDS[1]._replace(code=LOST)])
        log, _ = process.communicate(timeout=60)

    assert gpu is not None
    assert (gpu.uuid, gpu.device, gpu.watts) == ("GPU-2", 1, 312.5)
    assert process.returncode == 70
    assert "(error 15)" in log
    assert "Traceback" not in log


def test_a_backend_ends_when_its_gpu_is_lost_while_models_load(
    tmp_path: Path, driver: FakeDriver
) -> None:
    models = write_repository(tmp_path / "models", real=True)
    command = [*PROGRAM, "--models", str(models), "--port", str(free_port()), "--hang"]
    environment = {**process_environment(), **driver.environment}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        loading = next((line for line in process.stdout if line == "loading\n"), None)
        driver.show([CARDS[0]._replace(code=LOST), CARDS[1]])
        log, _ = process.communicate(timeout=120)

    assert loading is not None
    assert process.returncode == 70
    assert "(error 15)" in log


async def test_a_backend_is_started_anew_until_its_gpu_is_back(
    tmp_path: Path, driver: FakeDriver
) -> None:
    models, port = write_repository(tmp_path / "models", real=True), free_port()
    said: list[str] = []
    spec = ProcessSpec(
        name="backend-eu-0",
        role=ProcessRole.BACKEND,
        argv=(*PROGRAM, "--models", str(models), "--port", str(port)),
        environment={**driver.environment, "CUDA_VISIBLE_DEVICES": "GPU-2"},
        probe=partial(probe_http, "127.0.0.1", port),
        ready_within=180,
    )
    spawner = Spawner(logs=tmp_path)
    async with Supervisor(root=tmp_path, spawner=spawner, say=said.append) as supervisor:
        await supervisor.ready(supervisor.start([spec]))

        driver.show([CARDS[0], CARDS[1]._replace(code=LOST)])
        await until(lambda: any("exited with code 1;" in line for line in said), within=60)
        driver.show(CARDS)
        async with asyncio.timeout(180):
            while not await asyncio.to_thread(is_ready, port):
                pass  # the supervisor runs on this loop, and waits before it starts the next one

        await supervisor.stop(asyncio.Event())

    assert any("backend-eu-0 exited with code 70; restarting in 0.1 s" in line for line in said)
    assert (
        "which names no GPU that models can run on" in (tmp_path / "backend-eu-0.log").read_text()
    )


async def test_items_of_a_lost_gpu_are_answered_elsewhere(
    tmp_path: Path, valkey_server: Valkey, driver: FakeDriver
) -> None:
    valkey_server.flush()
    models = write_repository(tmp_path / "models", real=True)
    ports = [free_port(), free_port()]
    pool = [
        {"id": f"eu-{number}", "url": f"http://127.0.0.1:{port}"}
        for number, port in enumerate(ports)
    ]
    document: dict[str, Any] = {
        "regions": [{"name": "eu", "pools": [{"backends": pool}]}],
        "cache": {"memory_enabled": False, "redis_enabled": False},
        "limits": {"tenant": []},
    }
    with ExitStack() as stack:
        processes = []
        for number, port in enumerate(ports):
            environment = {**driver.environment, "CUDA_VISIBLE_DEVICES": CARDS[number].uuid}
            running = serving(
                models, port, "--id", f"eu-{number}", environment=environment, program=PROGRAM
            )
            processes.append(await asyncio.to_thread(stack.enter_context, running))
        async with (
            running_worker(tmp_path, valkey_server.url, **document) as worker,
            SteadyLoad(worker.port, REQUEST, rate=40.0) as load,
        ):
            await until(lambda: load.statuses[200] > 20)
            favourite = max(
                worker.parts.backends.fleet.statistics(), key=lambda each: each.calls
            ).backend
            lost = int(str(favourite)[-1])

            driver.show(
                [card._replace(code=LOST if n == lost else 0) for n, card in enumerate(CARDS)]
            )
            ended = await asyncio.to_thread(processes[lost].wait, 60.0)
            answered = load.statuses[200]
            await until(lambda: load.statuses[200] > answered + 20)

    assert ended == 70
    assert (set(load.statuses), load.broken) == ({200}, [])
