"""A folder as Triton serves it: `config.pbtxt` beside numbered folders."""

import shutil
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.manifest import ClassifierManifest
from sluicegate.wire.protocol import Task
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.backend_calls import running_backend

CONFIG = """
name: "nli"
platform: "onnxruntime_onnx"
max_batch_size: 32
default_model_filename: "encoder.onnx"
input [ { name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "logits" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
dynamic_batching { }
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with three versions of `nli`; all but the graphs lies beside them."""
    entry = tmp_path / "converted"
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    convert(source, entry)
    model = tmp_path / "models" / "nli"
    for number in ("1", "2", "3"):
        (model / number).mkdir(parents=True)
        shutil.copyfile(entry / "model.onnx", model / number / "encoder.onnx")
    for name in ("tokenizer.json", "config.json"):
        shutil.copyfile(entry / name, model / name)
    (model / "labels.txt").write_text("against\nneither\nfor it\n")
    (model / "config.pbtxt").write_text(CONFIG)
    return tmp_path / "models"


def configure(models: Path, text: str) -> None:
    with (models / "nli" / "config.pbtxt").open("a") as file:
        file.write(text)


@pytest.mark.anyio
async def test_the_newest_version_answers_with_the_labels_beside_it(models: Path) -> None:
    async with running_backend(models, threads=1) as backend:
        answer = await backend.answer("nli", Task.CLASSIFY, ("A man sleeps.", "He rests."))

        assert {label["label"] for label in answer["labels"]} == {"against", "neither", "for it"}
        assert [info.name for info in backend.engine.state().models] == ["nli"]


def test_check_tells_what_the_configuration_told(models: Path) -> None:
    model = read_catalogue(models).models["nli"]

    assert isinstance(model.manifest, ClassifierManifest)
    assert model.manifest.graph == "encoder.onnx"
    assert model.folder.name == "3"
    assert model.inferred["labels"] == "config.pbtxt"
    assert model.inferred["max_tokens"] == "`max_position_embeddings` in config.json"


@pytest.mark.parametrize(
    ("policy", "names", "answering"),
    [
        ("{ all { } }", {"nli", "nli@1", "nli@2"}, "3"),
        ("{ latest { num_versions: 2 } }", {"nli", "nli@2"}, "3"),
        ("{ specific { versions: [1, 2] } }", {"nli", "nli@1"}, "2"),
    ],
)
def test_versions_are_served_as_the_policy_says(
    models: Path, policy: str, names: set[str], answering: str
) -> None:
    configure(models, f"version_policy: {policy}\n")

    catalogue = read_catalogue(models)

    assert catalogue.problems == {}
    assert set(catalogue.models) == names
    assert catalogue.models["nli"].folder.name == answering


def test_what_is_written_by_hand_wins(models: Path) -> None:
    configure(models, "version_policy: { all { } }\n")
    (models / "nli" / "serving.yaml").write_text("revisions: {1: 1}\n")
    (models / "nli" / "model.yaml").write_text("labels: [a, b, c]\n")

    catalogue = read_catalogue(models)

    assert set(catalogue.models) == {"nli"}
    manifest = catalogue.models["nli"].manifest
    assert isinstance(manifest, ClassifierManifest)
    assert manifest.labels == ["a", "b", "c"]


def test_what_lies_beside_the_versions_is_part_of_the_revision(models: Path) -> None:
    before = read_catalogue(models).models["nli"].revision
    (models / "nli" / "labels.txt").write_text("one\ntwo\nthree\n")

    assert read_catalogue(models).models["nli"].revision != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('backend: "python"', "`python`"),
        ('platform: "ensemble"', "`ensemble`"),
        ("version_policy { specific { versions: [7] } }", "there is no revision `7`"),
        ("version_policy { specific { } }", "names no `versions`"),
        ("version_policy { latest { num_versions: 0 } }", "`num_versions`"),
        ("version_policy { some { } }", "`version_policy`"),
        ('output { label_filename: "none.txt" }\noutput', "line 11: `:` or `{` is missing"),
        ("output: 3", "`output`"),
        ("default_model_filename: 3", "`default_model_filename`"),
        ('default_model_filename: "m.onnx"', "nor `m.onnx`"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_named(
    models: Path, text: str, message: str
) -> None:
    configure(models, text)

    assert message in read_catalogue(models).problems["nli"]


def test_labels_that_are_missing_are_named(models: Path) -> None:
    (models / "nli" / "labels.txt").unlink()

    assert "labels.txt`: No such file" in read_catalogue(models).problems["nli"]
