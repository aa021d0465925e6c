"""`models import` as an operator calls it: a folder in, a served model out, or one clear line."""

import asyncio
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from sluicegate.backends.model_tools.importing import places
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.wire.protocol import Task
from tests.parity.checkpoints import (
    FAMILIES,
    FEWER_FAMILIES,
    Checkpoint,
    Family,
    write_checkpoint,
)
from tests.support.backend_calls import running_backend
from tests.support.imports import run_import


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "Source")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["models", *map(str, arguments)])


@pytest.mark.anyio
@pytest.mark.parametrize("family", [*FAMILIES, *FEWER_FAMILIES])
async def test_a_folder_of_weights_becomes_a_model_that_answers(
    tmp_path: Path, family: Family
) -> None:
    checkpoint = Checkpoint(family=family, purpose="text")
    folder = write_checkpoint(checkpoint, tmp_path / "source")

    result = await asyncio.to_thread(run_import, folder, tmp_path / "m", "--name", "nli")

    assert result.exit_code == 0, result.output
    assert "contradiction, neutral, entailment (`id2label` in config.json)" in result.output
    async with running_backend(tmp_path / "m", threads=1) as backend:
        answer = await backend.answer("nli", Task.CLASSIFY, ("A man sleeps.", "He rests."))
    assert {label["label"] for label in answer["labels"]} == set(checkpoint.labels)


def test_the_graph_of_a_folder_that_has_one_is_taken(source: Path, tmp_path: Path) -> None:
    (source / "onnx").mkdir()
    convert(source, tmp_path / "other")
    graph = (tmp_path / "other" / "model.onnx").read_bytes()
    (source / "onnx" / "model.onnx").write_bytes(graph)
    (source / "model.safetensors").unlink()

    result = run_import(source, tmp_path / "m")

    assert "the graph `onnx/model.onnx`, rebuilt as a `bert`" in result.output
    assert (tmp_path / "m" / "source" / "1" / "model.onnx").read_bytes() == graph


def test_an_import_is_the_next_revision(source: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert run_import(source, tmp_path / "m").exit_code == 0

    found = sorted(path.name for path in (tmp_path / "m" / "source").iterdir())
    assert found == ["1", "2"]
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["source"]


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path) -> None:
    result = run_import(source, tmp_path / "m", "--dry-run")

    assert result.exit_code == 0
    assert list((tmp_path / "m").iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "has no `config.json`"),
        ("tokenizer.json", None, "AutoTokenizer"),
        ("model.safetensors", None, "neither `model.onnx` nor `model.safetensors`"),
        ("model.safetensors", b"none", "as safetensors"),
        ("config.json", b"{", "cannot read"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_in_one_line(
    source: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    (source / name).unlink()
    if content is not None:
        (source / name).write_bytes(content)

    result = run_import(source, tmp_path / "m")

    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert list((tmp_path / "m").iterdir()) == []


def test_a_folder_without_a_configuration_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: object) -> None:
        pytest.fail("the folder was searched")

    monkeypatch.setattr(os, "walk", search)

    result = run_import(tmp_path, tmp_path / "m", "--name", "large")

    assert result.exit_code == 2
    assert "has no `config.json`" in result.output


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", "gpt2", "`gpt2` models must be exported"),
        ("hidden_act", "relu", "`hidden_act` must be `gelu`"),
        ("architectures", ["BertForNextSentencePrediction"], "head is not supported"),
        ("num_hidden_layers", 3, "is missing"),
        ("is_decoder", True, "a decoder"),
    ],
)
def test_a_model_that_cannot_be_built_says_why(
    source: Path, tmp_path: Path, field: str, value: object, message: str
) -> None:
    config = json.loads((source / "config.json").read_bytes()) | {field: value}
    (source / "config.json").write_text(json.dumps(config))

    result = run_import(source, tmp_path / "m")

    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--precision", "int8"], "`--precision` needs `--judge`"),
        (["--input", "tokens"], "`--input` must be NAME=VALUE"),
    ],
)
def test_wrong_options_are_told_before_a_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    def open_place(source: str, *, revision: str | None) -> NoReturn:
        pytest.fail(f"`{source}` at {revision} was looked for")

    monkeypatch.setattr(places, "open_place", open_place)

    result = run_import("owner/name", tmp_path / "m", *options)

    assert result.exit_code == 2
    assert message in result.output


def test_a_name_that_no_call_could_use_is_refused(source: Path, tmp_path: Path) -> None:
    result = run_import(source, tmp_path / "m", "--name", "../up")

    assert result.exit_code == 2
    assert "not a valid model name" in result.output


def test_check_shows_what_was_inferred_and_from_what(source: Path, tmp_path: Path) -> None:
    run_import(source, tmp_path / "m", "--name", "nli")

    lines = run("check", "--models", tmp_path / "m")
    document = json.loads(run("check", "--models", tmp_path / "m", "--json").stdout)

    assert "max_tokens             64 (`max_position_embeddings` in config.json)" in lines.output
    assert document["inferred"]["nli"]["labels"] == "`id2label` in config.json"
