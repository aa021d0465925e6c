"""Sources that mean harm, or are broken, change nothing outside of what a sync brings."""

import errno
import gzip
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.syncing import fetching
from sluicegate.backends.model_tools.syncing.manifest import (
    MANIFEST,
    Descriptor,
    Manifest,
    SyncProblem,
    sha256,
)
from sluicegate.backends.model_tools.syncing.synchronise import Synchroniser
from tests.support.model_sync import CONTENT, files, push, run, write
from tests.support.registry import Registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as running:
        yield running


def member(name: str, content: bytes = b"", link: str = "", **more: object) -> bytes:
    """Return a member of an archive; `more` are fields of its header."""
    info = tarfile.TarInfo(name)
    info.size, info.linkname = len(content), link
    for field, value in more.items():
        setattr(info, field, value)
    header = info.tobuf(tarfile.PAX_FORMAT)
    return header + content + bytes(-len(content) % tarfile.BLOCKSIZE)


MODEL = member("models/a/1/model.onnx", b"graph")


def sync_image(registry: Registry, folder: Path, *members: bytes) -> str:
    """Synchronise an image of one layer; return what was printed."""
    layer = gzip.compress(b"".join(members) + bytes(1024), mtime=0)
    registry.blobs[sha256(layer)] = layer
    kind = "application/vnd.oci.image.layer.v1.tar+gzip"
    blob = Descriptor(media_type=kind, digest=sha256(layer), size=len(layer))
    registry.manifests["live"] = Manifest(media_type=MANIFEST, layers=[blob]).encode()
    return run("sync", f"oci://{registry.host}/image:live", folder).output


def test_a_layer_removes_nothing_outside_of_its_image(tmp_path: Path, registry: Registry) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "models/own"
    write(outside, {"kept": b"-"})
    write(inside, {"1/model.onnx": b"-"})
    up = "../" * 3

    for name in (
        f"models/{outside}/.wh..wh..opq",
        f"models//{outside}/.wh.kept",
        f"models/{outside.parent}/.wh.outside",
        f"models/{up}outside/.wh..wh..opq",
        f"models/a/{up}{up}own/.wh.1",
        f"models/{up}.wh.own",
        "models/a/.wh...",
        "models/a/.wh.",
    ):
        said = sync_image(registry, tmp_path / "models", MODEL, member(name))
        assert "not a path in a model repository" in said, (name, said)

    assert files(outside) == {"kept": b"-"}
    assert files(tmp_path / "models") == {"own/1/model.onnx": b"-"}


@pytest.mark.parametrize(
    "name", ["models/.wh..wh..opq", ".wh..wh..opq", "./.wh..wh..opq", ".wh.models", "/.wh.models"]
)
def test_a_layer_may_remove_all_below_it(tmp_path: Path, registry: Registry, name: str) -> None:
    kept = member("models/b/1/model.onnx", b"kept")

    said = sync_image(registry, tmp_path / "models", MODEL, member(name), kept)

    assert "b/1: in place" in said
    assert files(tmp_path / "models") == {"b/1/model.onnx": b"kept"}


@pytest.mark.parametrize("has_links", [True, False], ids=["links", "no-links"])
def test_a_hard_link_of_a_layer_is_the_file_that_it_names(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch, *, has_links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    again = member("models/b/1/model.onnx", link="models/a/1/model.onnx", type=tarfile.LNKTYPE)

    sync_image(registry, tmp_path / "models", MODEL, again)

    assert files(tmp_path / "models") == {"a/1/model.onnx": b"graph", "b/1/model.onnx": b"graph"}


@pytest.mark.parametrize(
    ("kind", "link", "says"),
    [
        (tarfile.SYMTYPE, "model.onnx", "is a symbolic link or a device"),
        (tarfile.LNKTYPE, "etc/passwd", "not a file below `/models/`"),
        (tarfile.LNKTYPE, "models/../../../x", "not a path in a model repository"),
    ],
    ids=["symbolic", "elsewhere", "above"],
)
def test_a_link_that_cannot_be_followed_is_refused(
    tmp_path: Path, registry: Registry, kind: bytes, link: str, says: str
) -> None:
    wrong = member("models/a/1/tokenizer.json", link=link, type=kind)

    said = sync_image(registry, tmp_path / "models", MODEL, wrong)

    assert says in said
    assert files(tmp_path / "models") == {}


@pytest.mark.parametrize(
    "members",
    [
        (member("models/a/1/x", b"-", pax_headers={"GNU.sparse.map": "x"}),),
        (b"x" * 600,),
        (member("models/a/1/x", b"-", size=1 << 60),),
    ],
    ids=["sparse", "garbage", "huge"],
)
def test_a_broken_archive_is_explained(
    tmp_path: Path, registry: Registry, members: tuple[bytes, ...]
) -> None:
    said = sync_image(registry, tmp_path / "models", *members)

    assert "a layer is not a tar" in said or "less space" in said
    assert files(tmp_path / "models") == {}


def test_a_size_that_no_disk_holds_is_refused(tmp_path: Path, registry: Registry) -> None:
    title = {"org.opencontainers.image.title": "a/1/model.onnx"}
    blob = Descriptor(digest=sha256(b"x"), size=1 << 60, annotations=title)
    registry.manifests["live"] = Manifest(media_type=MANIFEST, layers=[blob]).encode()

    said = run("sync", f"oci://{registry.host}/models:live", tmp_path / "models").output

    assert f"`a/1/model.onnx` needs {1 << 60} bytes, but the disk of" in said


def test_a_source_that_drips_is_left_and_gone_on_with(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"oci://{registry.host}/models:live"
    push(write(tmp_path / "made"), source)

    with monkeypatch.context() as patch:
        patch.setattr(fetching, "_PATIENCE", -1000.0)
        said = run("sync", source, tmp_path / "models").output
    parts = list((tmp_path / "models/.synchronising/blobs").glob("*.part"))
    run("sync", source, tmp_path / "models")

    assert "arrives too slowly" in said
    assert parts
    assert files(tmp_path / "models") == CONTENT


def test_nothing_that_a_source_causes_ends_what_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes: list[BaseException] = [
        SystemExit(0),
        ValueError("a text of its"),
        SyncProblem("a\x1b[2J/1"),
    ]

    def fail(*_: object) -> None:
        raise causes.pop()

    monkeypatch.setattr(Synchroniser, "run", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    result = run("sync", f"file://{tmp_path}/layout", tmp_path / "models", "--watch", "0.1")

    assert result.exit_code == 0, result.exception
    assert result.output.splitlines() == [
        "sluicegate models: a\N{REPLACEMENT CHARACTER}[2J/1",
        f"sluicegate models: file://{tmp_path}/layout: ValueError",
    ]


@pytest.mark.parametrize("name", ["models//etc/1/x", "models/a//1/x", "models/a/1//x"])
def test_a_name_with_empty_parts_is_refused(tmp_path: Path, registry: Registry, name: str) -> None:
    said = sync_image(registry, tmp_path / "models", MODEL, member(name, b"-"))

    assert "not a path in a model repository" in said
    assert files(tmp_path) == {}


def test_nothing_stays_of_an_image_that_failed_but_its_layers(
    tmp_path: Path, registry: Registry
) -> None:
    sync_image(registry, tmp_path / "models", MODEL, member("models/a/1/x", type=tarfile.SYMTYPE))

    left = (tmp_path / "models/.synchronising").iterdir()
    assert [each.name for each in left] == ["blobs"]
