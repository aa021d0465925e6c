"""`sluicegate gateway` prints JSON lines of all of its processes, or keeps them in files."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings, environment, process_environment
from testing.loopback import is_answered
from testing.ports import free_port
from testing.valkey import Valkey
from testing.waiting import wait_until

_NAMES = {"supervisor", "worker-0", "admin", "shipper"}


@contextmanager
def process(
    folder: Path, output: Path, *options: str, port: int, admin_port: int, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway that prints to `output`."""
    (folder / "config").mkdir()
    (folder / "config" / "gateway.yaml").write_text("regions: []\n")
    with Valkey() as redis, output.open("wb") as printed:
        own = Settings(
            data_dir=folder / "data",
            config=folder / "config",
            port=port,
            admin_port=admin_port,
            admin_key="a" * 16,
            cache_url=redis.url,
            state_url=redis.url,
            log_level="DEBUG",
        )
        Ledger.create(own.ledger).close()
        command = [
            sys.executable,
            "-m",
            "sluicegate.gateway",
            "gateway",
            "--workers",
            "1",
            *options,
        ]
        with subprocess.Popen(
            command,
            env={
                **process_environment(),
                **environment(own),
                "SLUICEGATE_BATCHES": "false",
                **settings,
            },
            stdout=printed,
            stderr=subprocess.PIPE,
        ) as running:
            try:
                yield running
            finally:
                running.terminate()
                running.wait(60.0)


@contextmanager
def gateway(
    folder: Path, output: Path, *options: str, admin_port: int = 0, **settings: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway that prints to `output`, from when it serves; it prints no error."""
    admin_port = admin_port or free_port()
    with process(
        folder, output, *options, port=free_port(), admin_port=admin_port, **settings
    ) as running:
        wait_until(lambda: b"serving on" in output.read_bytes(), within=60.0)
        yield running
        running.terminate()
        running.wait(60.0)
        assert running.stderr is not None
        assert running.stderr.read() == b""


def test_every_process_prints_json_lines_to_standard_output(tmp_path: Path) -> None:
    output = tmp_path / "output"

    with gateway(tmp_path, output):
        pass

    lines = [msgspec.json.decode(line) for line in output.read_bytes().splitlines()]
    assert {line["process"] for line in lines} == _NAMES
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    assert list((tmp_path / "data" / "logs").iterdir()) == []


def test_another_place_for_logs_is_refused(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sluicegate.gateway", "gateway"],
        env={**process_environment(), "SLUICEGATE_LOGS": "syslog"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert result.returncode == 3
    assert "SLUICEGATE_LOGS" in result.stderr or "`$.logs`" in result.stderr


def test_files_are_kept_where_they_are_asked_for_though_nothing_can_be_printed(
    tmp_path: Path,
) -> None:
    """The gateway serves on."""
    port = free_port()

    def is_alive() -> bool:
        return is_answered(f"http://127.0.0.1:{port}/health/live", timeout=60.0)

    full = Path("/dev/full")
    with process(
        tmp_path, full, "--no-admin", port=port, admin_port=free_port(), SLUICEGATE_LOGS="files"
    ) as running:
        wait_until(lambda: is_alive() or running.poll() is not None, within=60.0)

        assert running.poll() is None
        assert is_alive()
    assert {path.name for path in (tmp_path / "data" / "logs").iterdir()} == {
        "gateway-0.log",
        "shipper.log",
    }


def test_without_operators_their_port_and_key_are_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "output"

    with socket.create_server(("127.0.0.1", 0)) as somebody:
        admin_port = somebody.getsockname()[1]
        with gateway(tmp_path, output, "--no-admin", admin_port=admin_port) as running:
            os.kill(running.pid, signal.SIGHUP)
            wait_until(lambda: b"not reloaded" in output.read_bytes(), within=60.0)

        somebody.setblocking(False)
        with suppress(BlockingIOError):
            connection, _ = somebody.accept()
            raise AssertionError(f"{connection} came")
    assert b"runs no operators' listener" in output.read_bytes()
