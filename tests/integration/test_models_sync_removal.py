"""A sync removes what it brought, and nothing that stays in the source or that others made."""

import errno
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.syncing.layout import FolderObjects, LayoutStore
from sluicegate.backends.model_tools.syncing.manifest import (
    MANIFEST,
    Descriptor,
    Manifest,
    SyncProblem,
    sha256,
)
from sluicegate.backends.model_tools.syncing.synchronise import Synchroniser
from tests.support.model_sync import files, push, run, write


class Pair:
    """A source in a folder, and the repository that follows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models = folder / "models"
        self.target = f"file://{folder}/layout"
        self.pushes = 0

    def push(self, content: dict[str, bytes]) -> None:
        self.pushes += 1
        push(write(self.folder / f"made-{self.pushes}", content), self.target)

    def sync(self, *options: str) -> str:
        return run("sync", self.target, self.models, *options).output


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_files_beside_one_that_left_stay(pair: Pair) -> None:
    stays = {"s/1/model.onnx": b"graph", "s/assets/deep/b.txt": b"b"}
    own = {"s/assets/own.txt": b"mine", "s/assets/deep/own.txt": b"mine"}
    pair.push(stays | {"s/assets/a.txt": b"a", "s/other/a.txt": b"a"})
    pair.sync()
    write(pair.models, own)

    pair.push(stays)
    said = pair.sync()

    assert "s/assets/a.txt: removed" in said
    assert files(pair.models) == stays | own
    assert not (pair.models / "s/other").exists()


def test_a_part_of_a_repository_is_brought_by_the_names_of_models(pair: Pair) -> None:
    content = {f"{name}/1/model.onnx": b"graph" for name in ("minilm", "mini-b", "sentiment")}
    pair.push(content)

    said = pair.sync("--model", "mini*")
    part = files(pair.models)
    pair.sync("--model", "sentiment", "--model", "minilm", "--prune")

    assert "sentiment" not in said
    assert part == {path: each for path, each in content.items() if path.startswith("mini")}
    assert files(pair.models).keys() == {"minilm/1/model.onnx", "sentiment/1/model.onnx"}
    assert "of other: there is no revision" in pair.sync("--model", "other")


def test_what_others_made_outlives_a_model(pair: Pair) -> None:
    stays = {"t/1/model.onnx": b"graph"}
    own = {"s/serving.yaml": b"revisions: {1: 1}"}
    pair.push(stays | {"s/1/model.onnx": b"graph"})
    pair.sync()
    write(pair.models, own | {"s/.draft/model.onnx": b"mine", "s/.last-served.json": b"{}"})

    pair.push(stays)
    pair.sync("--prune")

    assert files(pair.models) == stays | own
    assert (pair.models / "s/.draft/model.onnx").read_bytes() == b"mine"


def test_what_backends_measured_goes_with_the_model(pair: Pair) -> None:
    stays = {"t/1/model.onnx": b"graph"}
    pair.push(stays | {"s/1/model.onnx": b"graph"})
    pair.sync()
    names = (".last-served.json", ".fallback.json", ".fp16.json", ".forms-fp16.json")
    write(pair.models, {f"s/{name}": b"{}" for name in names})

    pair.push(stays)
    pair.sync("--prune")

    assert not (pair.models / "s").exists()


def test_a_file_of_a_folder_of_its_own_is_placed(pair: Pair) -> None:
    content = {"s/1/model.onnx": b"graph", "s/assets/a/b.txt": b"b"}
    pair.push(content)

    pair.sync()

    assert files(pair.models) == content


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("s/1", "`s/1`"),
        ("s/1/model.onnx/a", "`s/1/model.onnx`"),
        (f"s/2/{'n' * 256}", "is too long"),
        (f"s/2/{'é' * 128}", "is too long"),
        (f"s/2{'/n' * 500}", "is too long"),
    ],
    ids=["revision", "file", "name", "letters", "path"],
)
def test_paths_that_no_folder_can_hold_are_refused(pair: Pair, path: str, says: str) -> None:
    store = LayoutStore(FolderObjects(pair.folder / "layout"))
    pair.push({"s/1/model.onnx": b"graph"})
    layers = [
        Descriptor(
            digest=sha256(b"graph"),
            size=5,
            annotations={"org.opencontainers.image.title": each},
        )
        for each in ("s/1/model.onnx", path)
    ]
    content = Manifest(media_type=MANIFEST, layers=layers).encode()
    store.put_manifest(sha256(content), content, "latest")

    said = pair.sync()

    assert says in said
    assert files(pair.models) == {}


def test_a_repository_is_looked_at_again_after_a_run_that_failed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"s/1/model.onnx": b"graph", "s/serving.yaml": b"revisions: {1: 1}"}
    pair.push(first)
    store = LayoutStore(FolderObjects(pair.folder / "layout"))
    synchroniser = Synchroniser(store, pair.models, name=pair.target, prune=False)
    synchroniser.run("latest")
    pair.push({"s/1/model.onnx": b"graph", "s/serving.yaml": b"{}", "s/words.txt": b"w"})
    rename = Path.rename

    def rename_or_fail(self: Path, target: Path) -> Path:
        if target.name == "words.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename_or_fail)
        with pytest.raises(SyncProblem, match="No space left"):
            synchroniser.run("latest")
    assert files(pair.models) == first | {"s/serving.yaml": b"{}"}
    pair.push(first)
    synchroniser.run("latest")

    assert files(pair.models) == first


def test_nothing_is_placed_where_a_folder_cannot_be_made(pair: Pair) -> None:
    pair.push({"s/1/model.onnx": b"graph", "t/1/model.onnx": b"graph"})
    write(pair.models, {"t": b"in the way"})

    said = pair.sync()

    assert "models/t: cannot be written" in said
    assert files(pair.models) == {"t": b"in the way"}


def test_a_blob_that_was_altered_since_a_run_that_failed_is_fetched_anew(pair: Pair) -> None:
    content = {"s/1/model.onnx": b"graph"}
    pair.push(content)
    blob = pair.models / ".synchronising/blobs" / sha256(b"graph").removeprefix("sha256:")
    write(blob.parent, {blob.name: b"other"})

    said = pair.sync()

    assert "s/1: in place" in said
    assert files(pair.models) == content


def test_one_that_watches_sees_what_was_altered_and_equal_files_are_two(pair: Pair) -> None:
    content = {"s/1/model.onnx": b"graph", "s/2/model.onnx": b"graph"}
    pair.push(content)
    store = LayoutStore(FolderObjects(pair.folder / "layout"))
    synchroniser = Synchroniser(store, pair.models, name=pair.target, prune=False)
    synchroniser.run("latest")
    write(pair.models, {"s/1/model.onnx": b"other"})
    altered = files(pair.models)

    results = [synchroniser.run("latest").changed for _ in range(2)]

    assert altered == content | {"s/1/model.onnx": b"other"}
    assert results == [["s/1"], []]
    assert files(pair.models) == content


def test_equal_weights_are_fetched_and_stored_once(pair: Pair) -> None:
    content = {f"{name}/1/model.weights": b"weights" for name in ("one", "two")}
    pair.push(content)
    pair.sync()
    (pair.folder / "layout/blobs/sha256" / sha256(b"weights").partition(":")[2]).write_bytes(b"")
    pair.push(content | {"three/1/model.weights": b"weights"})

    pair.sync()

    assert len({path.stat().st_ino for path in pair.models.glob("*/1/model.weights")}) == 1
    assert len(files(pair.models)) == 3


def test_shared_weights_that_were_altered_are_fetched_anew(pair: Pair) -> None:
    content = {f"{name}/1/model.weights": b"weights" for name in ("one", "two")}
    pair.push(content)
    pair.sync()
    write(pair.models, {"one/1/model.weights": b"altered"})

    pair.sync()

    assert files(pair.models) == content


def test_a_model_that_left_leaves_the_weights_that_it_shared(pair: Pair) -> None:
    content = {f"{name}/1/model.weights": b"weights" for name in ("one", "two")}
    pair.push(content)
    pair.sync()
    pair.push({"two/1/model.weights": b"weights"})

    pair.sync("--prune")

    assert files(pair.models) == {"two/1/model.weights": b"weights"}


def test_a_file_may_become_a_folder_and_a_folder_a_file(pair: Pair) -> None:
    first = {"s/1/model.onnx": b"graph", "s/assets": b"a", "s/2": b"a"}
    second = {"s/1/model.onnx": b"graph", "s/assets/b/c.txt": b"c", "s/2/model.onnx": b"b"}

    for content in (first, second, first):
        pair.push(content)
        pair.sync()

        assert files(pair.models) == content


def test_a_folder_with_what_others_made_does_not_become_a_file(pair: Pair) -> None:
    content = {"s/1/model.onnx": b"graph", "s/assets/a.txt": b"a"}
    own = {"s/assets/own.txt": b"mine"}
    pair.push(content)
    pair.sync()
    write(pair.models, own)
    pair.push({"s/1/model.onnx": b"graph", "s/assets": b"a"})

    said = pair.sync()

    assert "not written by `models sync`" in said
    assert files(pair.models) == content | own
