"""`sluicegate ledger backup` copies a ledger that is written meanwhile."""

import itertools
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable
from sluicegate.gateway.ledger.backup import back_up
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.settings import Settings, environment, process_environment
from tests.support.events import make_event
from tests.support.ledgers import record, sums


def run(settings: Settings, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "sluicegate.gateway", "ledger", "backup", *arguments],
        env={**process_environment(), **environment(settings)},
        check=False,
        capture_output=True,
        text=True,
    )


def test_the_copy_is_a_ledger_with_everything_of_before(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    copy = tmp_path / "copy.db"
    stop = threading.Event()
    with Ledger.create(settings.ledger) as ledger:
        record(ledger, "log", 1, [make_event(0)])

        def write() -> None:
            for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count(1)):
                record(ledger, "log", number + 1, [make_event(number)])

        writer = threading.Thread(target=write)
        writer.start()
        result = run(settings, str(copy))
        stop.set()
        writer.join()

    assert result.returncode == 0, result.stderr
    assert copy.stat().st_mode & 0o077 == 0
    with Ledger.create(f"sqlite:///{copy}") as copied:
        assert copied.recorder.high_water(["log"])["log"] >= 1
        assert sums(copied).events >= 1
    assert not list(tmp_path.glob(".*partial*"))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    copy = tmp_path / "copy.db"
    copy.write_text("mine")
    with Ledger.create(settings.ledger):
        result = run(settings, str(copy))

    assert result.returncode == 3
    assert "exists" in result.stderr
    assert copy.read_text() == "mine"


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DependencyUnavailable, match="was not backed up"):
        back_up(f"sqlite:///{tmp_path}/missing.db", tmp_path / "copy.db")

    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with Ledger.create(settings.ledger) as ledger:
        ledger.accounts.tenants()
    (tmp_path / "file").touch()

    result = run(settings, str(tmp_path / "file" / "copy.db"))

    assert result.returncode == 1
    assert result.stderr.startswith("Error: the ledger was not backed up: ")
    assert len(result.stderr.splitlines()) == 1


def test_postgresql_has_a_program_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pg_dump"):
        back_up("postgresql+psycopg://user:secret@database/sluicegate", tmp_path / "copy")
