"""The secret of cache tags is created once per data directory."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sluicegate.gateway.app.secret import secret_of
from sluicegate.gateway.settings import Settings


def test_a_secret_that_is_given_is_used_and_nothing_is_written(tmp_path: Path) -> None:
    assert secret_of(Settings(data_dir=tmp_path, secret="given")) == b"given"
    assert list(tmp_path.iterdir()) == []


def test_a_secret_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")

    first, second = secret_of(settings), secret_of(settings)

    assert first == second
    assert len(first) == 64
    assert [path.name for path in settings.data_dir.iterdir()] == ["secret"]
    assert (settings.data_dir / "secret").stat().st_mode & 0o077 == 0


def test_two_directories_have_two_secrets(tmp_path: Path) -> None:
    one, other = (Settings(data_dir=tmp_path / name) for name in ("a", "b"))

    assert secret_of(one) != secret_of(other)


def test_workers_that_start_at_once_agree(tmp_path: Path) -> None:
    workers, settings = 16, Settings(data_dir=tmp_path)
    together = threading.Barrier(workers)

    def start(_: int) -> bytes:
        together.wait()
        return secret_of(settings)

    with ThreadPoolExecutor(workers) as pool:
        secrets = list(pool.map(start, range(workers)))

    assert len(set(secrets)) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
