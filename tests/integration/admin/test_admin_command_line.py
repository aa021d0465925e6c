"""The command line against a running operators' listener."""

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import CliRunner, Result
from prometheus_client import CollectorRegistry

from sluicegate.gateway.admin.serve import serve_admin
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.redis.client import connect
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.settings import Settings
from testing.loopback import is_answered, no_authorities
from testing.waiting import wait_until
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.admin import KEY
from tests.support.commands import listener as answering
from tests.support.imports import import_arguments


@pytest.fixture
def listener(settings: Settings) -> Iterator[Settings]:
    """The listener as a process runs it, on its port."""
    Ledger.create(settings.ledger).close()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def serve() -> None:
        loop.run_until_complete(serve_admin(settings, stop=stop, registry=CollectorRegistry()))

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{settings.admin_port}/health/ready"
    wait_until(lambda: is_answered(url), what="the listener answers")
    yield settings
    loop.call_soon_threadsafe(stop.set)
    thread.join(timeout=60)
    loop.close()


@contextlib.contextmanager
def living(settings: Settings, name: str) -> Iterator[None]:
    """A worker that gives signs of life and does nothing else."""
    begun, stop = threading.Event(), threading.Event()

    async def live() -> None:
        redis = connect(settings.state_url, timeout=60.0)
        while not stop.is_set():
            await Control(redis).heartbeat(name, b"{}")
            begun.set()
            await asyncio.to_thread(stop.wait, 0.5)
        await redis.aclose()

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        stop.set()
        thread.join()


def run(settings: Settings, *arguments: str) -> Result:
    """Run `sluicegate` with the listener's address and key."""
    url = f"http://127.0.0.1:{settings.admin_port}"
    environment = {"SLUICEGATE_ADMIN_URL": url, "SLUICEGATE_ADMIN_KEY": KEY}
    return CliRunner().invoke(main, arguments, env=environment)


def test_the_command_line_manages_a_running_gateway(listener: Settings) -> None:
    reloaded = run(listener, "config", "reload")
    shown = run(listener, "config", "show")
    bounds = ("--origin", "https://a.example", "--route", "/v1/embed")
    created = run(listener, "keys", "create", "acme", "--new-tenant", *bounds, "--json")
    listed = run(listener, "keys", "list", "--tenant", "acme")
    key = msgspec.json.decode(created.stdout)
    revoked = run(listener, "keys", "revoke", key["id"])
    usage = run(listener, "usage", "--json")
    models = run(listener, "models", "reload", "--json")

    results = [reloaded, shown, created, listed, revoked, usage, models]
    assert [result.exit_code for result in results] == [0] * 7, [r.output for r in results]
    assert msgspec.json.decode(models.stdout) == {"live": True, "workers": {}, "backends": {}}
    assert reloaded.output.startswith("generation 1, digest ")
    assert "cache_ttl: 1.0" in shown.output
    assert listed.output.splitlines()[1].split()[:3] == [key["id"], "acme", "active"]
    assert key["key"].startswith("sk-")
    assert (key["origins"], key["routes"]) == (["https://a.example"], ["/v1/embed"])


def test_an_import_has_a_running_gateway_read_the_repository_again(
    listener: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    arguments = import_arguments(source, tmp_path / "m", "--reload")
    address = f"http://127.0.0.1:{listener.admin_port}"
    monkeypatch.setenv("SLUICEGATE_ADMIN_URL", address)
    monkeypatch.setenv("SLUICEGATE_ADMIN_KEY", KEY)

    done = subprocess.run(
        [sys.executable, "-m", "sluicegate.gateway", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "written to" in done.stdout
    key = {"authorization": f"Bearer {KEY}"}
    entries = httpx.get(f"{address}/admin/audit", headers=key).json()["entries"]
    assert "models.reload" in [entry["action"] for entry in entries]


def test_the_report_of_an_import_is_one_document_before_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    arguments = import_arguments(source, tmp_path / "m", "--json", "--reload")
    reloaded = b'{"live": true, "workers": {"worker-1": "ok"}, "backends": {}}'
    head = b"200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(reloaded)

    with answering(head + reloaded) as ((_, url, _, key), _):
        monkeypatch.setenv("SLUICEGATE_ADMIN_URL", url)
        monkeypatch.setenv("SLUICEGATE_ADMIN_KEY", key)
        done = subprocess.run(
            [sys.executable, "-m", "sluicegate.gateway", *arguments],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )

    assert json.loads(done.stdout)["model"] == "source"
    assert done.stderr.endswith("\nworker-1: ok\n")


@pytest.mark.parametrize("form", ["--data-dir {}", "--data-dir={}"])
def test_an_import_reloads_the_gateway_of_a_data_directory(tmp_path: Path, form: str) -> None:
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    where = form.format(tmp_path / "none").split()
    arguments = import_arguments(source, tmp_path / "m", "--reload")

    done = subprocess.run(
        [sys.executable, "-m", "sluicegate.gateway", *arguments, *where],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert "written to" in done.stdout
    assert f"`{tmp_path / 'none'}`" in done.stderr


def test_the_command_line_drains_and_restores_a_backend(listener: Settings) -> None:
    (listener.config / "r.yaml").write_text(
        "regions: [{name: eu, pools: [{backends: ["
        '{id: eu-0, url: "http://h:1"}, {id: us, dns: "backends.us:8100"}]}]}]'
    )
    run(listener, "config", "reload")

    drained = run(listener, "regions", "drain", "eu", "eu-0")
    listed = run(listener, "regions", "list")
    restored = run(listener, "regions", "restore", "eu", "eu-0", "--json")
    unknown = run(listener, "regions", "drain", "eu", "eu-9")
    elsewhere = run(listener, "regions", "drain", "us", "eu-0")

    assert drained.output.startswith("`eu-0` ")
    assert "eu-0" in listed.output
    assert "(drained)" in listed.output
    assert "by DNS from backends.us:8100" in listed.output
    assert msgspec.json.decode(restored.stdout)["drained"] is False
    assert (unknown.exit_code, elsewhere.exit_code) == (4, 4)
    assert "no backend `eu-9` in region `eu`; choose from `eu-0`, `us`" in unknown.output
    assert "no region `us`; choose from `eu`" in elsewhere.output


def test_what_not_every_worker_follows_is_exit_code_1(listener: Settings) -> None:
    """A worker lives that takes nothing, as one that hangs or refuses the document."""
    (listener.config / "r.yaml").write_text(
        'regions: [{name: eu, pools: [{backends: [{id: eu-0, url: "http://h:1"}]}]}]'
    )

    with living(listener, "a-worker"):
        results = [
            run(listener, *command)
            for command in (
                ("config", "reload"),
                ("regions", "drain", "eu", "eu-0", "--json"),
            )
        ]

    for result in results:
        assert result.exit_code == 1, result.output
        assert "a-worker" in result.output
        assert "pending" in result.output


def test_the_listener_answers_head_as_get(listener: Settings) -> None:
    url = f"http://127.0.0.1:{listener.admin_port}"

    for path, headers in (("/health/ready", {}), ("/metrics", {"authorization": f"Bearer {KEY}"})):
        with httpx.Client(base_url=url, headers=headers, verify=no_authorities()) as client:
            read, head = client.get(path), client.head(path)

        assert (read.status_code, head.status_code, head.content) == (200, 200, b"")
        assert head.headers["content-type"] == read.headers["content-type"]


def test_a_refusal_is_one_line_with_its_place_and_exit_code_4(listener: Settings) -> None:
    (listener.config / "g.yaml").write_text("models:\n  m: 3\n")

    result = run(listener, "config", "reload")

    assert result.exit_code == 4
    assert "g.yaml:2: models.m: expected a mapping, got `int`" in result.output


def test_the_folder_is_published_at_the_start(listener: Settings) -> None:
    deadline = time.monotonic() + 10
    result = run(listener, "config", "show", "--json")
    while result.exit_code and time.monotonic() < deadline:
        result = run(listener, "config", "show", "--json")

    assert msgspec.json.decode(result.stdout)["author"] == "start"


def test_a_data_directory_leads_to_its_own_listener_and_to_no_other(
    listener: Settings, tmp_path: Path
) -> None:
    """The listener keeps its address there while it runs, whatever its port."""
    (listener.data_dir / "admin-key").write_text(KEY)
    found = CliRunner().invoke(main, ["keys", "list", "--data-dir", str(listener.data_dir)])
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
        arguments = ["keys", "list", "--data-dir", str(listener.data_dir), "--admin-url", url]
        refused = CliRunner().invoke(main, arguments)
        with pytest.raises(BlockingIOError):
            other.accept()

    assert found.exit_code == 0, found.output
    assert refused.exit_code == 2
    assert f"http://127.0.0.1:{listener.admin_port}" in refused.output
