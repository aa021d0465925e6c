"""A push repairs what is damaged, and leaves the manifests of other tags."""

import os
from pathlib import Path

import msgspec
import pytest

from sluicegate.backends.model_tools.syncing.manifest import (
    INDEX,
    REF,
    Descriptor,
    Manifest,
    sha256,
)
from tests.support.model_sync import CONTENT, files, push, run, write
from tests.support.registry import Registry

MODEL = CONTENT["minilm/1/model.onnx"]


@pytest.mark.parametrize("place", ["file", "oci"])
def test_a_truncated_object_is_sent_again(tmp_path: Path, place: str) -> None:
    write(tmp_path / "made")
    with Registry() as registry:
        target = f"oci://{registry.host}/models"
        if place == "file":
            target = f"file://{tmp_path}/layout"
        push(tmp_path / "made", target)
        if place == "file":
            damage(tmp_path, MODEL[:-1])
        else:
            registry.blobs[sha256(MODEL)] = MODEL[:-1]

        push(tmp_path / "made", target)
        run("sync", target, tmp_path / "models")

    assert files(tmp_path / "models") == CONTENT


def test_an_altered_object_is_sent_again_by_force(tmp_path: Path) -> None:
    target = f"file://{tmp_path}/layout"
    push(write(tmp_path / "made"), target)
    damage(tmp_path, MODEL[:-1] + b"X")

    refused = run("sync", target, tmp_path / "models")
    run("push", tmp_path / "made", target, "--force")
    run("sync", target, tmp_path / "models")

    assert "`--force`" in refused.output
    assert files(tmp_path / "models") == CONTENT


def damage(folder: Path, content: bytes) -> None:
    """Overwrite the object that holds `MODEL`."""
    name = sha256(MODEL).partition(":")[2]
    (folder / "layout/blobs/sha256" / name).write_bytes(content)


def test_a_manifest_of_a_tag_wins_over_one_of_none(tmp_path: Path) -> None:
    target, index = f"file://{tmp_path}/layout", tmp_path / "layout/index.json"
    old = push(write(tmp_path / "made", {"a/1/model.onnx": b"old"}), target)
    new = push(write(tmp_path / "made", {"a/1/model.onnx": b"new"}), target)
    bare = Descriptor(digest=old, size=1)
    tagged = Descriptor(digest=new, size=1, annotations={REF: "latest"})
    index.write_bytes(Manifest(media_type=INDEX, manifests=[bare, tagged]).encode())

    result = run("sync", target, tmp_path / "models")

    assert new in result.output
    index.write_bytes(Manifest(media_type=INDEX, manifests=[bare]).encode())
    assert old in run("sync", target, tmp_path / "models").output


def test_an_index_that_cannot_be_read_is_not_replaced(tmp_path: Path) -> None:
    index = tmp_path / "layout/index.json"
    write(tmp_path, {"layout/index.json": b"{"})

    result = run("push", write(tmp_path / "made"), f"file://{tmp_path}/layout")

    assert result.exit_code == 2
    assert "index.json: not a manifest" in result.output
    assert index.read_bytes() == b"{"
    index.unlink()
    push(tmp_path / "made", f"file://{tmp_path}/layout")
    assert msgspec.json.decode(index.read_bytes())["manifests"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    made = write(tmp_path / "made", {"s/1/model.onnx": b"graph"})
    (made / os.fsdecode(b"s/1/caf\xe9.txt")).write_bytes(b"-")

    result = run("push", made, f"file://{tmp_path}/layout")

    assert result.exit_code == 2, result.exception
    assert "`s/1/caf\\udce9.txt` is not a path in a model repository" in result.output
