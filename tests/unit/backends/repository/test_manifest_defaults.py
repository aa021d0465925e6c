"""What a folder without a `model.yaml` tells by itself, and what it is asked for by name."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.repository.catalogue import Catalogue, read_catalogue
from sluicegate.backends.repository.graph_file import read_graph_file
from sluicegate.backends.repository.manifest import ClassifierManifest, EncoderManifest
from sluicegate.wire.protocol import Task
from testing.model_repository import toy_graph, write_encoder
from tests.parity.checkpoints import MAX_TOKENS, Checkpoint, Purpose, write_checkpoint


def write_entry(root: Path, purpose: Purpose, *, family: str = "bert") -> Path:
    """Write the entry `m` of a seeded checkpoint, with no `model.yaml`."""
    checkpoint = Checkpoint(family=family, purpose=purpose)  # type: ignore[arg-type]
    convert(write_checkpoint(checkpoint, root / ".source"), root / "m" / "1")
    return root / "m" / "1"


def edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; `None` takes one out."""
    document = json.loads(path.read_bytes()) | changes
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not None}))


def classifier(catalogue: Catalogue) -> ClassifierManifest:
    assert catalogue.problems == {}
    manifest = catalogue.models["m"].manifest
    assert isinstance(manifest, ClassifierManifest)
    return manifest


@pytest.mark.parametrize(
    ("purpose", "tasks", "function"),
    [
        ("text", [Task.CLASSIFY, Task.ZERO_SHOT], "softmax"),
        ("many", [Task.CLASSIFY], "sigmoid"),
        ("tokens", [Task.ENTITIES], "softmax"),
        ("choice", [Task.CHOOSE], "softmax"),
        ("answer", [Task.ANSWER], "softmax"),
        ("cross", [Task.CLASSIFY, Task.RERANK], "sigmoid"),
    ],
)
def test_a_classifier_is_told_by_its_files(
    tmp_path: Path, purpose: Purpose, tasks: list[Task], function: str
) -> None:
    write_entry(tmp_path, purpose)

    manifest = classifier(read_catalogue(tmp_path))

    assert manifest.tasks == tasks
    assert manifest.function == function
    assert manifest.output == "logits"


def test_labels_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "text")
    edit(entry / "config.json", id2label={"2": "c", "0": "a", "1": "b"})

    catalogue = read_catalogue(tmp_path)

    assert classifier(catalogue).labels == ["a", "b", "c"]
    assert catalogue.models["m"].inferred["labels"] == "`id2label` in config.json"


@pytest.mark.parametrize(
    ("family", "changes", "token"),
    [
        ("bert", {}, "[CLS]"),
        ("roberta", {"cls_token": {"content": "<s>", "special": True}}, "<s>"),
        ("roberta", {"cls_token": None, "tokenizer_class": "RobertaTokenizer"}, "<s>"),
        ("roberta", {"cls_token": None}, None),
    ],
)
def test_the_token_of_no_answer_is_the_one_that_classifies(
    tmp_path: Path, family: str, changes: dict[str, Any], token: str | None
) -> None:
    entry = write_entry(tmp_path, "answer", family=family)
    edit(entry / "tokenizer_config.json", **changes)

    manifest = classifier(read_catalogue(tmp_path))

    assert manifest.no_answer_token == token
    assert manifest.labels == ["start", "end"]


def test_a_question_after_its_text_is_refused(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "answer")
    edit(entry / "tokenizer_config.json", padding_side="left")

    assert "`padding_side` must be `right`" in read_catalogue(tmp_path).problems["m"]


def test_what_model_yaml_says_wins(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "text")
    (entry / "model.yaml").write_text(
        "labels: [against, neither, for]\nmax_tokens: 20\ntruncate: true\n"
    )

    manifest = classifier(read_catalogue(tmp_path))

    assert manifest.labels == ["against", "neither", "for"]
    assert (manifest.max_tokens, manifest.truncate) == (20, True)


@pytest.mark.parametrize(("family", "positions"), [("bert", 512), ("roberta", 514)])
def test_the_length_is_the_shortest_that_is_told(
    tmp_path: Path, family: str, positions: int
) -> None:
    entry = write_entry(tmp_path, "text", family=family)
    edit(entry / "config.json", max_position_embeddings=positions)
    (entry / "tokenizer_config.json").unlink()

    by_model = classifier(read_catalogue(tmp_path)).max_tokens
    (entry / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 100}))

    assert by_model == 512
    assert classifier(read_catalogue(tmp_path)).max_tokens == 100


def test_a_sentence_transformer_is_told_by_its_files(tmp_path: Path) -> None:
    write_entry(tmp_path, "embed-cls")

    manifest = read_catalogue(tmp_path).models["m"].manifest

    assert isinstance(manifest, EncoderManifest)
    assert manifest.tasks == [Task.EMBED, Task.RERANK]
    assert (manifest.max_tokens, manifest.truncate, manifest.dimensions) == (MAX_TOKENS, True, 32)


@pytest.mark.parametrize(
    ("purpose", "missing", "field"),
    [
        ("text", {"id2label": None}, "labels"),
        ("text", {"max_position_embeddings": None, "model_type": None}, "max_tokens"),
    ],
)
def test_what_no_file_tells_is_asked_for_by_name(
    tmp_path: Path, purpose: Purpose, missing: dict[str, Any], field: str
) -> None:
    entry = write_entry(tmp_path, purpose)
    edit(entry / "config.json", **missing)
    edit(entry / "tokenizer_config.json", model_max_length=int(1e30))

    problem = read_catalogue(tmp_path).problems["m"]

    assert f"`{field}` cannot be inferred" in problem


def test_another_number_of_labels_than_logits_is_refused(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "text")
    edit(entry / "config.json", id2label={"0": "a"})

    assert "1 `labels`" in read_catalogue(tmp_path).problems["m"]


def test_a_graph_that_is_none_is_named(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "text")
    (entry / "model.onnx").write_bytes(b"no graph")

    assert "not an ONNX graph" in read_catalogue(tmp_path).problems["m"]


def test_an_entry_without_anything_names_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)

    assert "nor `model.onnx`" in read_catalogue(tmp_path).problems["m"]


@pytest.mark.parametrize("place", ["m", "m/1"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "adapter_config.json"])
def test_a_hugging_face_folder_as_it_was_saved_is_told_the_import(
    tmp_path: Path, place: str, file: str
) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / file).write_text("{}")

    assert "`sluicegate models import`" in read_catalogue(tmp_path).problems["m"]


def test_a_whole_model_yaml_needs_no_other_file_to_be_read(tmp_path: Path) -> None:
    write_encoder(tmp_path)

    model = read_catalogue(tmp_path).models["tiny"]

    assert model.inferred == {}


def test_nothing_is_inferred_from_a_graph_in_another_format(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "text")
    (entry / "model.onnx").rename(entry / "table.npz")
    (entry / "model.yaml").write_text("kind: classifier\ngraph: table.npz\n")

    problems = read_catalogue(tmp_path).problems

    assert "missing required field `tokenizer`" in problems["m"]


def test_a_graph_file_tells_inputs_and_outputs(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(toy_graph())

    graph = read_graph_file(path)

    assert [v.name for v in graph.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {v.name: v.shape for v in graph.outputs} == {
        "pooled": [None, 8],
        "tokens": [None, None, 8],
    }


@pytest.mark.parametrize("length", [0, 1, 10, 1000])
def test_a_graph_file_that_is_cut_is_refused_or_read(tmp_path: Path, length: int) -> None:
    entry = write_entry(tmp_path, "text")
    path = entry / "model.onnx"
    path.write_bytes(path.read_bytes()[:length])

    assert "not an ONNX graph" in read_catalogue(tmp_path).problems["m"]


def test_the_length_of_the_publisher_goes_before_that_of_the_tokenizer(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "embed")
    edit(entry / "tokenizer_config.json", model_max_length=20)
    edit(entry / "sentence_bert_config.json", max_seq_length=40)

    manifest = read_catalogue(tmp_path).models["m"].manifest

    assert isinstance(manifest, EncoderManifest)
    assert manifest.max_tokens == 40


def test_documents_are_ranked_by_the_cosine_or_not_at_all(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "embed")
    prompts = {"prompts": {"query": "q: "}, "similarity_fn_name": "euclidean"}
    (entry / "config_sentence_transformers.json").write_text(json.dumps(prompts))

    manifest = read_catalogue(tmp_path).models["m"].manifest

    assert isinstance(manifest, EncoderManifest)
    assert (manifest.tasks, manifest.prompts["query"]) == ([Task.EMBED], "q: ")


@pytest.mark.parametrize(
    ("where", "name", "function"),
    [
        ("config.json", "sentence_transformers", "none"),
        ("config.json", "sbert_ce_default_activation_function", "none"),
        ("config_sentence_transformers.json", "activation_fn", "none"),
        ("config.json", "unknown", "sigmoid"),
    ],
)
def test_a_cross_encoder_scores_as_it_was_saved(
    tmp_path: Path, where: str, name: str, function: str
) -> None:
    entry = write_entry(tmp_path, "cross")
    identity = "torch.nn.modules.linear.Identity"
    value = {"activation_fn": identity} if name == "sentence_transformers" else identity
    (entry / where).touch()
    document = json.loads((entry / where).read_bytes() or "{}") | {name: value}
    (entry / where).write_text(json.dumps(document))

    manifest = classifier(read_catalogue(tmp_path))

    assert (manifest.function, manifest.rerank_function) == ("sigmoid", function)


def test_modules_that_need_an_import_are_named(tmp_path: Path) -> None:
    entry = write_entry(tmp_path, "embed")
    model = onnx.load(str(entry / "model.onnx"))
    del model.graph.output[0]
    (entry / "model.onnx").write_bytes(model.SerializeToString())
    (entry / "1_Pooling").mkdir()
    modes = {"pooling_mode": "weightedmean"}
    (entry / "1_Pooling" / "config.json").write_text(json.dumps(modes))

    problem = read_catalogue(tmp_path).problems["m"]

    assert "`models import`" in problem
