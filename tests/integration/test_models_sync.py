"""Repositories are synchronised from storage and registries: verified, then put in place."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from sluicegate.backends.model_tools.syncing.manifest import (
    sha256,
)
from sluicegate.backends.model_tools.syncing.stores import open_store, read_source
from sluicegate.backends.model_tools.syncing.synchronise import Synchroniser
from sluicegate.backends.repository.last_good import write_last_good
from sluicegate.backends.repository.sync_record import SyncWatch, read_record
from tests.support.model_sync import CONTENT, files, push, run, write
from tests.support.registry import Registry


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


@pytest.fixture(params=["file", "s3", "oci"])
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        return f"file://{tmp_path}/layout"
    if request.param == "oci":
        return f"oci://{request.getfixturevalue('registry').host}/team/models:live"
    endpoint: str = request.getfixturevalue("s3_endpoint")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"models-{tmp_path.stat().st_ino}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/below/a/prefix"


def test_a_repository_is_what_was_pushed(tmp_path: Path, target: str) -> None:
    write(tmp_path / "made", CONTENT | {"minilm/.last-served.json": b"{}", "README.md": b"-"})

    digest = push(tmp_path / "made", target)
    result = run("sync", target, tmp_path / "models")

    assert result.output.endswith(f"{target} is in place: {digest}\n")
    assert files(tmp_path / "models") == CONTENT
    assert push(tmp_path / "models", target) == digest
    assert not (tmp_path / "models/.synchronising").exists()


def test_one_manifest_is_named_by_its_digest(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    digest = push(write(tmp_path / "made"), target)
    write(tmp_path / "made", {"minilm/2/model.onnx": b"newer"})
    newer = push(tmp_path / "made", target)

    assert run("sync", f"{target}@{digest}", tmp_path / "models").exit_code == 0

    assert files(tmp_path / "models") == CONTENT
    assert run("sync", f"{target}@{newer}", tmp_path / "models").exit_code == 0
    assert files(tmp_path / "models")["minilm/2/model.onnx"] == b"newer"


class Damage:
    """Changes a blob in its place."""

    def __init__(self, change: Callable[[bytes], bytes | None], says: str) -> None:
        self.change, self.says = change, says


@pytest.mark.parametrize(
    "damage",
    [
        Damage(lambda content: content[:-1], "is truncated or altered: 199999 of 200000 bytes"),
        Damage(lambda content: b"G" + content[1:], "was altered: its digest is sha256:"),
        Damage(lambda content: content + b"x", "more than 200000 of 200000 bytes"),
        Damage(lambda _: None, "missing"),
    ],
    ids=["truncated", "altered", "longer", "missing"],
)
def test_a_damaged_object_is_refused_and_nothing_changes(tmp_path: Path, damage: Damage) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made", {"minilm/1/model.onnx": b"before"}), target)
    run("sync", target, tmp_path / "models")
    before = files(tmp_path / "models"), read_record(tmp_path / "models")
    push(write(tmp_path / "newer"), target)
    hex_digest = sha256(CONTENT["minilm/1/model.onnx"]).partition(":")[2]
    blob = tmp_path / "layout/blobs/sha256" / hex_digest
    changed = damage.change(blob.read_bytes())
    blob.unlink() if changed is None else blob.write_bytes(changed)

    result = run("sync", target, tmp_path / "models")

    assert result.exit_code == 2
    assert damage.says in result.output
    assert "Traceback" not in result.output
    assert (files(tmp_path / "models"), read_record(tmp_path / "models")) == before
    push(tmp_path / "newer", f"file://{tmp_path}/mended")
    assert run("sync", f"file://{tmp_path}/mended", tmp_path / "models").exit_code == 0
    assert files(tmp_path / "models") == CONTENT


def test_an_altered_manifest_is_refused(tmp_path: Path) -> None:
    digest = push(write(tmp_path / "made"), f"file://{tmp_path}/layout")
    manifest = tmp_path / "layout/blobs/sha256" / digest.partition(":")[2]
    manifest.write_bytes(manifest.read_bytes().replace(b"minilm", b"maxilm"))

    result = run("sync", f"file://{tmp_path}/layout", tmp_path / "models")

    assert result.exit_code == 2
    assert f"the manifest {digest} was altered" in result.output
    assert files(tmp_path / "models") == {}


def test_a_sync_that_was_killed_goes_on(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    blobs = tmp_path / "layout/blobs/sha256"
    last = blobs / sha256(CONTENT["sentiment/2/head.npz"]).partition(":")[2]
    content = last.read_bytes()
    last.unlink()
    # Nobody writes it: the sync waits there.
    os.mkfifo(last)
    command = [
        sys.executable,
        "-m",
        "sluicegate.backends",
        "models",
        "sync",
        target,
        str(tmp_path / "models"),
    ]
    staged = tmp_path / "models/.synchronising/blobs"
    with subprocess.Popen(command) as syncing, last.open("wb"):
        # Opening it waited for the sync to read it.
        syncing.send_signal(signal.SIGKILL)
        syncing.wait()
    fetched = {path.name for path in staged.iterdir() if not path.suffix}
    last.unlink()
    last.write_bytes(content)
    # What was fetched is not fetched again.
    for name in fetched:
        (blobs / name).unlink()

    assert files(tmp_path / "models") == {}
    assert sha256(CONTENT["minilm/1/model.onnx"]).partition(":")[2] in fetched
    assert run("sync", target, tmp_path / "models").exit_code == 0
    assert files(tmp_path / "models") == CONTENT


def test_a_sidecar_follows_its_source_until_it_is_stopped(tmp_path: Path) -> None:
    target, models = f"file://{tmp_path}/layout", tmp_path / "models"
    push(write(tmp_path / "made"), target)
    command = [sys.executable, "-m", "sluicegate.backends", "models", "sync", target, str(models)]
    with subprocess.Popen([*command, "--watch", "0.1"], stdout=subprocess.PIPE) as syncing:
        assert syncing.stdout is not None
        while b"is in place" not in syncing.stdout.readline():
            pass
        (tmp_path / "layout/index.json").rename(tmp_path / "kept")
        newer = write(tmp_path / "made", {"minilm/2/model.onnx": b"newer"})
        (tmp_path / "kept").rename(tmp_path / "layout/index.json")
        push(newer, target)
        line = syncing.stdout.readline()
        while b"is in place" not in syncing.stdout.readline():
            pass
        syncing.terminate()

    assert syncing.returncode == 0
    assert line == b"minilm/2: in place\n"
    assert files(models)["minilm/2/model.onnx"] == b"newer"


@pytest.mark.parametrize("target", ["s3"], indirect=True)
def test_an_object_of_a_bucket_that_is_shorter_than_what_was_fetched_is_refused(
    tmp_path: Path, target: str
) -> None:
    push(write(tmp_path / "made"), target)
    content = CONTENT["minilm/1/model.onnx"]
    name = sha256(content).partition(":")[2]
    staged = tmp_path / "models/.synchronising/blobs" / f"{name}.part"
    write(tmp_path, {staged.relative_to(tmp_path).as_posix(): content[:150_000]})
    key = f"below/a/prefix/blobs/sha256/{name}"
    bucket = target.split("/")[2]
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=content[:100_000])

    refused = run("sync", target, tmp_path / "models")
    boto3.client("s3").delete_object(Bucket=bucket, Key=key)
    missing = run("sync", target, tmp_path / "models")

    assert "`minilm/1/model.onnx` is truncated or altered: 100000 of 200000" in refused.output
    assert f"the object `blobs/sha256/{name}` is missing" in missing.output
    assert (refused.exit_code, missing.exit_code) == (2, 2)
    assert files(tmp_path / "models") == {}


def test_a_file_that_was_altered_in_place_is_fetched_anew(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    run("sync", target, tmp_path / "models")
    (tmp_path / "models/sentiment/1/head.npz").write_bytes(b"WEIGHTS")

    result = run("sync", target, tmp_path / "models")

    assert "sentiment/1: in place" in result.output
    assert files(tmp_path / "models") == CONTENT


def test_a_revision_that_somebody_else_made_is_not_replaced(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    write(tmp_path / "models", {"sentiment/1/head.npz": b"my own"})

    result = run("sync", target, tmp_path / "models")

    assert result.exit_code == 2
    assert "models/sentiment/1: " in result.output
    assert files(tmp_path / "models") == {"sentiment/1/head.npz": b"my own"}


def test_a_revision_that_left_stays_until_another_one_is_served(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    models = tmp_path / "models"
    run("sync", target, models)
    write_last_good(models / "sentiment", {"1": 90, "2": 10})
    newer = {path: each for path, each in CONTENT.items() if "sentiment/1" not in path}
    newer["sentiment/serving.yaml"] = b"revisions: {2: 1}"
    push(write(tmp_path / "newer", newer), target)

    run("sync", target, models)
    assert files(models) == newer | {"sentiment/1/head.npz": b"weights"}
    write_last_good(models / "sentiment", {"2": 1})
    result = run("sync", target, models)

    assert "sentiment/1: removed" in result.output
    assert files(models) == newer


def test_a_model_that_left_is_removed_where_that_is_asked_for(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    models = tmp_path / "models"
    run("sync", target, models)
    write(models, {"own/1/model.onnx": b"mine", "sentiment/.last-served.json": b"{}"})
    left = {path: each for path, each in CONTENT.items() if path.startswith("minilm")}
    push(write(tmp_path / "newer", left), target)

    run("sync", target, models)
    assert files(models) == CONTENT | {"own/1/model.onnx": b"mine"}
    run("sync", target, models, "--prune")

    assert files(models) == left | {"own/1/model.onnx": b"mine"}
    assert not (models / "sentiment").exists()


def test_a_change_is_noticed_once_it_is_complete(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    store = open_store(read_source(target))
    synchroniser = Synchroniser(store, tmp_path / "models", name=target, prune=False)
    synchroniser.run("latest")
    watch = SyncWatch(tmp_path / "models")

    assert not synchroniser.run("latest").changed
    assert not watch.has_changed()
    write(tmp_path / "made", {"minilm/2/model.onnx": b"newer"})
    push(tmp_path / "made", target)
    assert synchroniser.run("latest").changed == ["minilm/2"]
    assert watch.has_changed()
    assert not watch.has_changed()


def test_two_syncs_of_a_folder_exclude_each_other(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    (tmp_path / "models").mkdir()

    with (tmp_path / "models/.synchronising.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run("sync", target, tmp_path / "models")

    assert result.exit_code == 2
    assert "another `models sync`" in result.output
    assert files(tmp_path / "models") == {}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("models", "is not a source"),
        ("oci://registry", "is not a source"),
        ("file://relative", "is not a source"),
        ("s3://name:secret@bucket/models", "must not have credentials"),
        ("file:///nowhere/at/all", "index.json is missing"),
    ],
)
def test_a_wrong_source_is_explained(tmp_path: Path, source: str, says: str) -> None:
    result = run("sync", source, tmp_path / "models")

    assert result.exit_code == 2
    assert says in result.output
    assert "secret" not in result.output
