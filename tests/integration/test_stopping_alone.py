"""A worker and the operators' listener that run alone: what they say when they are stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import process_environment
from testing.loopback import get
from testing.ports import free_port
from testing.raw_http import post
from testing.stub_backend import StubBackend
from testing.valkey import Valkey
from testing.waiting import wait_until
from tests.support.ledgers import ledger_url
from tests.support.worker import classify, running_worker

pytestmark = pytest.mark.anyio
_HIT = post("/v1/classify", classify("a text"))
_READY = b"GET /health/ready HTTP/1.1\r\nhost: worker\r\n\r\n"


async def test_a_memory_hit_of_a_worker_that_drains_ends_its_connection(
    tmp_path: Path, valkey: str
) -> None:
    draining = Draining(is_supervised=True)
    async with (
        StubBackend() as stub,
        running_worker(tmp_path, valkey, [stub], draining=draining) as worker,
        worker.connect() as connection,
    ):
        before = []
        for _ in range(3):  # computed, a hit, and a hit of the fast path
            await connection.send(_HIT)
            before.append(await connection.response())
        draining.announce()
        await connection.send(_HIT)
        last = await connection.response()
        async with worker.connect() as probing:
            await probing.send(_READY)
            ready = await probing.response()

        assert ["connection" in answer.headers for answer in before] == [False] * 3
        assert (last.status, last.headers["connection"]) == (200, "close")
        assert last.body == before[-1].body
        assert await connection.is_closed()
        assert ready.status == 503
        assert ready.json()["missing"][0].startswith("draining: ")


def admin_process(folder: Path, redis: str, port: int) -> "subprocess.Popen[bytes]":
    """Start an operators' listener that would serve on for long after SIGTERM."""
    Ledger.create(ledger_url(folder)).close()
    environment = dict(process_environment()) | {
        "SLUICEGATE_DATA_DIR": str(folder),
        "SLUICEGATE_STATE_URL": redis,
        "SLUICEGATE_CACHE_URL": redis,
        "SLUICEGATE_ADMIN_PORT": str(port),
        "SLUICEGATE_ADMIN_KEY": "admin-test-key-0123456789",
        "SLUICEGATE_SHUTDOWN_DELAY": "100",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "sluicegate.gateway", "run-admin"], env=environment
    )


def readiness(port: int) -> httpx.Response | None:
    """Return what an operators' listener says of itself, nothing where it is not there."""
    try:
        return get(f"http://127.0.0.1:{port}/health/ready", timeout=60)
    except httpx.TransportError:
        return None


def test_an_operators_listener_says_that_it_stops_and_ends_at_once_when_told_twice(
    tmp_path: Path, valkey_server: Valkey
) -> None:
    valkey_server.flush()
    port = free_port()

    def is_draining() -> bool:
        answer = readiness(port)
        return answer is not None and answer.json()["missing"][:1] == [
            "draining: the gateway is stopping; it still answers what it is sent"
        ]

    with admin_process(tmp_path, valkey_server.url, port) as admin:
        try:
            wait_until(lambda: readiness(port) is not None, within=60)
            os.kill(admin.pid, signal.SIGTERM)
            wait_until(is_draining, within=60)
            os.kill(admin.pid, signal.SIGTERM)

            assert admin.wait(timeout=60) == 0
        finally:
            admin.kill()


def test_at_a_terminal_nobody_waits_for_a_balancer(tmp_path: Path, valkey_server: Valkey) -> None:
    valkey_server.flush()
    port = free_port()
    with admin_process(tmp_path, valkey_server.url, port) as admin:
        try:
            wait_until(lambda: readiness(port) is not None, within=60)
            os.kill(admin.pid, signal.SIGINT)

            assert admin.wait(timeout=60) == 0
        finally:
            admin.kill()
