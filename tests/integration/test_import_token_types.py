"""An import tells the texts of a pair apart as the reference does, or refuses it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.manifest import ClassifierManifest
from sluicegate.wire.protocol import RerankParameters, Task
from tests.parity.checkpoints import Checkpoint, Purpose, write_checkpoint
from tests.support.backend_calls import running_backend
from tests.support.imports import run_import
from tests.support.odd_checkpoints import all_of, edit, weights

_NAMES = ["input_ids", "token_type_ids", "attention_mask"]


def import_folder(folder: Path, models: Path) -> Result:
    return run_import(folder, models, "--name", "m")


def roberta(folder: Path, purpose: Purpose, **tokenizer_config: Any) -> Path:
    """Write a RoBERTa with one token type, whose tokenizer gives a second text another."""
    write_checkpoint(Checkpoint(family="roberta", purpose=purpose), folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    first, second = ({"Sequence": {"id": each, "type_id": n}} for n, each in enumerate("AB"))
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [first],
        "pair": [first, second],
        "special_tokens": {},
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    config = {"tokenizer_class": "TokenizersBackend", **tokenizer_config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_the_generic_class_sends_no_types(tmp_path: Path) -> None:
    folder = write_checkpoint(Checkpoint(family="bert", purpose="cross"), tmp_path / "source")
    config = {"tokenizer_class": "TokenizersBackend", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    result = import_folder(folder, tmp_path / "m")

    assert result.exit_code == 0, result.output
    manifest = read_catalogue(tmp_path / "m").models["m"].manifest
    assert isinstance(manifest, ClassifierManifest)
    assert not manifest.token_types
    assert "without token types" in result.output


@pytest.mark.anyio
async def test_types_that_are_not_sent_need_no_vectors(tmp_path: Path) -> None:
    folder = roberta(tmp_path / "source", "cross")

    result = await asyncio.to_thread(import_folder, folder, tmp_path / "m")

    assert result.exit_code == 0, result.output
    async with running_backend(tmp_path / "m", threads=1) as backend:
        parameters = RerankParameters(query="a man")
        answer = await backend.answer("m", Task.RERANK, "a dog", parameters=parameters)
    assert 0 <= answer["score"] <= 1


@pytest.mark.parametrize("purpose", ["text", "choice"])
def test_types_that_a_model_has_no_vectors_of_are_refused(tmp_path: Path, purpose: Purpose) -> None:
    folder = roberta(tmp_path / "source", purpose, model_input_names=_NAMES)

    result = import_folder(folder, tmp_path / "m")

    assert result.exit_code == 2
    assert "token types 0 to 1, but `type_vocab_size` is 1" in result.output
    assert len(result.output.splitlines()) == 1
    assert list((tmp_path / "m").iterdir()) == []


def test_a_model_that_is_asked_for_single_texts_may_have_one_type(tmp_path: Path) -> None:
    folder = roberta(tmp_path / "source", "tokens", model_input_names=_NAMES)

    assert import_folder(folder, tmp_path / "m").exit_code == 0


def test_a_graph_that_fails_on_a_task_is_refused_by_a_trial(tmp_path: Path) -> None:
    """Nothing but its graph says here that it has vectors of one token type."""
    folder = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    narrow = np.zeros((1, 32), dtype=np.float32)
    all_of(
        weights(bert__embeddings__token_type_embeddings__weight=narrow),
        edit("config.json", type_vocab_size=1),
        edit("tokenizer_config.json", model_input_names=["input_ids", "attention_mask"]),
    )(folder)
    convert(folder, tmp_path / "made")
    (folder / "model.safetensors").unlink()
    (folder / "model.onnx").write_bytes((tmp_path / "made" / "model.onnx").read_bytes())
    all_of(
        edit("config.json", type_vocab_size=None, model_type="other"),
        edit("tokenizer_config.json", model_input_names=_NAMES),
    )(folder)

    result = import_folder(folder, tmp_path / "m")

    assert result.exit_code == 2
    assert "`classify` failed" in result.output
    assert list((tmp_path / "m").iterdir()) == []


def test_special_tokens_are_split_where_the_configuration_says_so(tmp_path: Path) -> None:
    folder = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    edit("tokenizer_config.json", split_special_tokens=True)(folder)

    result = import_folder(folder, tmp_path / "m")

    assert (
        "split_special_tokens   yes (`split_special_tokens` in tokenizer_config.json)"
        in result.output
    )
