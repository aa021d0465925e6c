"""`sluicegate gateway` prints JSON lines of all of its processes, or keeps them in files."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gateway.settings import Settings, environment, process_environment
from tests.support.system import free_port
from tests.support.valkey import Valkey
from tests.support.waiting import wait_until

_NAMES = {"supervisor", "worker-0", "admin", "shipper"}


@contextmanager
def gateway(folder: Path, output: Path, **settings: str) -> Iterator[None]:
    """Run a gateway that prints to `output`, from when it serves."""
    (folder / "config").mkdir()
    (folder / "config" / "gateway.yaml").write_text("regions: []\n")
    with Valkey() as redis, output.open("wb") as printed:
        own = Settings(
            data_dir=folder / "data",
            config=folder / "config",
            port=free_port(),
            admin_port=free_port(),
            admin_key="a" * 16,
            cache_url=redis.url,
            state_url=redis.url,
            log_level="DEBUG",
        )
        command = [sys.executable, "-m", "gateway", "gateway", "--workers", "1"]
        with subprocess.Popen(
            command,
            env={**process_environment(), **environment(own), **settings},
            stdout=printed,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                wait_until(lambda: b"serving on" in output.read_bytes(), within=60.0)
                yield
            finally:
                process.terminate()
                process.wait(60.0)
                assert process.stderr is not None
                assert process.stderr.read() == b""


def test_every_process_prints_json_lines_to_standard_output(tmp_path: Path) -> None:
    output = tmp_path / "output"

    with gateway(tmp_path, output):
        pass

    lines = [msgspec.json.decode(line) for line in output.read_bytes().splitlines()]
    assert {line["process"] for line in lines} == _NAMES
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    assert list((tmp_path / "data" / "logs").iterdir()) == []


def test_files_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    output = tmp_path / "output"

    with gateway(tmp_path, output, SLUICEGATE_LOGS="files"):
        pass

    assert {path.name for path in (tmp_path / "data" / "logs").iterdir()} == {
        "gateway-0.log",
        "admin.log",
        "shipper.log",
    }


def test_another_place_for_logs_is_refused(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "gateway", "gateway"],
        env={**process_environment(), "SLUICEGATE_LOGS": "syslog"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert result.returncode == 3
    assert "SLUICEGATE_LOGS" in result.stderr or "`$.logs`" in result.stderr
