"""Checkpoints that name code are imported only if Sluicegate computes what that code computes."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.parity.library_fixtures import unpack
from tests.parity.library_served import import_folder

ADAPTED = "jina_embeddings_v3-00"


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_code_of_another_class_is_refused(tmp_path: Path) -> None:
    folder = unpack("nomic_bert-06", tmp_path)
    edit(folder / "config.json", auto_map={"AutoModel": "owner/code--modeling.OtherModel"})

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert "`auto_map` names custom code" in reason


def test_an_adapter_that_the_weights_lack_is_refused(tmp_path: Path) -> None:
    folder = unpack(ADAPTED, tmp_path)
    (folder / "model.yaml").write_text("adapter: retrieval.passage")

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert "`retrieval.query`, `separation`, `text-matching`" in reason
    assert "`--adapter NAME`" in reason


@pytest.mark.parametrize("names", [[], ["one"], list("abcdefgh")])
def test_each_adapter_in_the_weights_needs_a_name(tmp_path: Path, names: list[str]) -> None:
    folder = unpack(ADAPTED, tmp_path)
    (folder / "model.yaml").unlink()
    edit(folder / "config.json", lora_adaptations=names)

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert f"names {len(names)} adapters in `lora_adaptations`, but the weights have 3" in reason


def test_weights_with_adapters_are_imported_without_any(tmp_path: Path) -> None:
    folder = unpack(ADAPTED, tmp_path)
    (folder / "model.yaml").write_text("adapter: none")

    assert import_folder(folder, tmp_path / "models") is None


@pytest.mark.parametrize("chosen", ["", "adapter: separation"])
def test_an_adapter_is_added_though_there_is_a_graph(tmp_path: Path, chosen: str) -> None:
    folder = unpack(ADAPTED, tmp_path)
    (folder / "model.yaml").write_text(chosen)
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.onnx").write_bytes(b"a graph that takes the number of a task")

    assert import_folder(folder, tmp_path / "models") is None


def test_a_head_that_the_first_class_ignores_is_ignored(tmp_path: Path) -> None:
    folder = unpack("gte-09", tmp_path)
    edit(folder / "config.json", architectures=["NewModel", "NewForTokenClassification"])

    assert import_folder(folder, tmp_path / "models") is None


def test_an_adapter_of_weights_without_adapters_is_refused(tmp_path: Path) -> None:
    folder = unpack("eurobert-06", tmp_path)
    (folder / "model.yaml").write_text("adapter: separation")

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert "there is no adapter `separation`" in reason


@pytest.mark.parametrize(
    ("field", "value"),
    [("model_input_names", ["input_ids", "attention_mask"]), ("padding_side", "left")],
)
def test_rows_of_siglip_are_filled_as_in_its_training(
    tmp_path: Path, field: str, value: object
) -> None:
    folder = unpack("siglip_text_model-01", tmp_path)
    edit(folder / "tokenizer_config.json", **{field: value})

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert f"`{field}` is " in reason


def test_a_tokenizer_of_sentencepiece_alone_is_refused_with_what_converts_it(
    tmp_path: Path,
) -> None:
    folder = unpack("siglip_text_model-01", tmp_path)
    edit(folder / "tokenizer_config.json", tokenizer_class="SiglipTokenizer")
    (folder / "tokenizer.json").rename(folder / "spiece.model")

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert "T5Tokenizer.from_pretrained" in reason
