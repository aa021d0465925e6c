"""Two pools of real backend processes serve what a document assigns, also while that changes."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from testing.model_repository import write_repository
from testing.ports import free_port
from testing.raw_http import KEY
from testing.valkey import Valkey
from testing.waiting import until
from tests.support.backend_process import serving
from tests.support.steady_load import SteadyLoad
from tests.support.worker import RunningWorker, running_worker

pytestmark = pytest.mark.anyio
PACED = {"SLUICEGATE_BACKEND_PROVIDER": "paced", "SLUICEGATE_BACKEND_SERVES": "-"}


def document(ports: dict[str, int], **assigned: list[str]) -> dict[str, Any]:
    pools = [
        {
            "name": name,
            "models": assigned[name],
            "backends": [{"id": name, "url": f"http://127.0.0.1:{port}"}],
        }
        for name, port in ports.items()
    ]
    return {
        "regions": [{"name": "eu", "pools": pools}],
        "routing": {"probe_interval": 0.1},
        "cache": {"memory_enabled": False, "redis_enabled": False},
        "limits": {"tenant": []},
    }


def request(model: str) -> bytes:
    body = msgspec.json.encode({"model": model, "input": ["a good film"]})
    head = f"POST /v1/classify HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {KEY}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def served(worker: RunningWorker) -> dict[str, set[str]]:
    fleet = worker.parts.backends.fleet
    return {str(each.backend): set(each.models) for each in fleet.statistics()}


@asynccontextmanager
async def publishing(worker: RunningWorker, url: str) -> AsyncIterator[Publisher]:
    """Give what publishes documents for a worker."""
    redis = connect(url, timeout=60.0)
    try:
        with Ledger.create(worker.settings.ledger) as ledger:
            yield Publisher(
                control=Control(redis),
                ledger=ledger,
                settings=worker.settings,
                clock=lambda: 1_000.0,
                workers_timeout=60.0,
            )
    finally:
        await redis.aclose()


@asynccontextmanager
async def running_pools(
    models: Path, ports: dict[str, int]
) -> AsyncIterator[dict[str, "subprocess.Popen[str]"]]:
    """Run a backend process for each pool; none serves anything before it is assigned."""
    async with AsyncExitStack() as stack:
        processes = {}
        for name, port in ports.items():
            options = ("--region", "eu", "--id", name)
            running = serving(models, port, *options, environment=PACED)
            processes[name] = await asyncio.to_thread(stack.enter_context, running)
        yield processes


async def test_an_assignment_moves_under_load_without_a_failed_request(
    tmp_path: Path, valkey_server: Valkey
) -> None:
    valkey_server.flush()
    models, url = write_repository(tmp_path / "models"), valkey_server.url
    ports = {"one": free_port(), "two": free_port()}
    before = document(ports, one=["mood"], two=["intents", "nam*"])
    after = document(ports, one=["mood", "intents"], two=["names"])
    async with (
        running_pools(models, ports) as processes,
        running_worker(tmp_path, url, **before) as worker,
        publishing(worker, url) as publisher,
        SteadyLoad(worker.port, request("intents"), rate=40.0) as load,
    ):
        worker.parts.backends.assigner.settling = 0.5
        await until(lambda: served(worker) == {"one": {"mood"}, "two": {"intents", "names"}})
        await until(lambda: load.statuses[200] > 10)
        load.statuses.clear()
        # It takes up nothing for a while, as one that loads a large model.
        processes["one"].send_signal(signal.SIGSTOP)
        text = msgspec.json.encode(after).decode()
        change = await publisher.put(text, if_match="", author="test")
        await until(lambda: load.answered > 60)
        kept = served(worker)["two"]
        processes["one"].send_signal(signal.SIGCONT)
        await until(lambda: served(worker) == {"one": {"mood", "intents"}, "two": {"names"}})
        moved = load.answered
        await until(lambda: load.answered > moved + 10)
        await load.end()

        assert change.live
        assert kept == {"intents", "names"}
        assert set(load.statuses) == {200}
        assert (load.broken, load.refused) == ([], 0)
        assert all(each.calls for each in worker.parts.backends.fleet.statistics())
