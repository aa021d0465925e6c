"""Every storage of files keeps the promises of `FileStorage`; S3's over a real server."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from sluicegate.gateway.errors import ConfigurationError, DependencyUnavailable, NotFound
from sluicegate.gateway.settings import Settings
from sluicegate.gateway.storage.base import FileStorage
from sluicegate.gateway.storage.build import build_storage
from sluicegate.gateway.storage.disk import DiskStorage
from sluicegate.gateway.storage.s3 import S3Storage


class DiskUsage(NamedTuple):
    """What `shutil.disk_usage` says."""

    total: int
    used: int
    free: int


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["disk", "s3"])
def storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FileStorage:
    if request.param == "disk":
        return DiskStorage(tmp_path / "files")
    endpoint: str = request.getfixturevalue("s3_endpoint")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    made = S3Storage(f"files-{tmp_path.stat().st_ino}", "below/a/prefix")
    made._client.create_bucket(Bucket=made._bucket)
    return made


def write(storage: FileStorage, name: str, *parts: bytes) -> None:
    with storage.writing(name) as take:
        for part in parts:
            take(part)


def content(storage: FileStorage, name: str, start: int = 0) -> bytes:
    return b"".join(storage.read(name, start))


def test_what_was_written_is_read(storage: FileStorage) -> None:
    large = b"x" * 600_000

    write(storage, "files/one", b"first ", large, b" last")

    assert content(storage, "files/one") == b"first " + large + b" last"
    assert content(storage, "files/one", start=600_006) == b" last"


def test_an_object_may_be_empty(storage: FileStorage) -> None:
    write(storage, "files/none")

    assert content(storage, "files/none") == b""


def test_a_later_object_of_a_name_replaces_the_former_one(storage: FileStorage) -> None:
    write(storage, "files/one", b"former")

    write(storage, "files/one", b"later")

    assert content(storage, "files/one") == b"later"


def test_what_was_written_before_an_error_is_nowhere(storage: FileStorage) -> None:
    with contextlib.suppress(ZeroDivisionError), storage.writing("files/one") as take:
        take(b"half")
        raise ZeroDivisionError

    with pytest.raises(NotFound):
        content(storage, "files/one")


def test_a_deleted_object_is_gone(storage: FileStorage) -> None:
    write(storage, "files/one", b"content")

    storage.delete("files/one")
    storage.delete("files/one")

    with pytest.raises(NotFound):
        content(storage, "files/one")


def test_all_objects_below_a_folder_are_deleted_and_no_others(storage: FileStorage) -> None:
    for name in ("parts/a/0.output", "parts/a/1.output", "parts/ab/0.output"):
        write(storage, name, name.encode())

    storage.delete_below("parts/a")
    storage.delete_below("parts/a")

    assert content(storage, "parts/ab/0.output") == b"parts/ab/0.output"
    for number in (0, 1):
        with pytest.raises(NotFound):
            content(storage, f"parts/a/{number}.output")


def test_a_storage_that_cannot_be_used_says_so(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(storage, DiskStorage):
        (tmp_path / "file").write_text("")
        storage = DiskStorage(tmp_path / "file")
    else:
        storage = S3Storage("no-such-bucket")

    with pytest.raises(DependencyUnavailable):
        write(storage, "files/one", b"content")


def test_a_disk_that_fills_up_is_left_to_the_event_log(
    storage: FileStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: DiskUsage(total=1000, used=901, free=99))

    with pytest.raises(DependencyUnavailable, match="disk of the file storage"):
        write(storage, "files/one", b"content")

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_setting_chooses_the_storage(tmp_path: Path) -> None:
    chosen = build_storage(Settings(files=str(tmp_path)))

    write(chosen, "files/one", b"content")

    assert (tmp_path / "files" / "one").read_bytes() == b"content"
    with pytest.raises(ConfigurationError, match="SLUICEGATE_FILES"):
        build_storage(Settings(files="ftp://example.com"))
