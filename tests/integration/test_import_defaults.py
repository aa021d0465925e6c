"""An import fills in what a folder leaves unsaid as transformers' classes do, to what it serves."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from sluicegate.wire.protocol import Task, TokenizeParameters
from tests.parity.checkpoints import Checkpoint, Family, write_checkpoint
from tests.support.backend_calls import running_backend
from tests.support.imports import run_import
from tests.support.odd_checkpoints import edit


def imported(folder: Path, models: Path) -> Path:
    """Import a folder, and return its revision."""
    result = run_import(folder, models, "--name", "m")
    assert result.exit_code == 0, result.output
    (graph,) = models.glob("m/*/model.onnx")
    return graph.parent


def without(folder: Path, *names: str) -> dict[str, Any]:
    """Take fields out of a folder's `config.json`; return what they were."""
    path = folder / "config.json"
    config = json.loads(path.read_bytes())
    taken = {name: config.pop(name) for name in names}
    path.write_text(json.dumps(config))
    return taken


@pytest.mark.parametrize(
    ("family", "absent"),
    [
        ("roberta", {"pad_token_id": 1}),
        ("bert", {"layer_norm_eps": 1e-12, "type_vocab_size": 2}),
    ],
)
def test_a_field_that_is_left_out_is_that_of_the_class(
    tmp_path: Path, family: Family, absent: dict[str, Any]
) -> None:
    folder = write_checkpoint(Checkpoint(family=family, purpose="text"), tmp_path / "source")
    whole = imported(folder, tmp_path / "whole")
    assert without(folder, *absent) == absent

    trimmed = imported(folder, tmp_path / "trimmed")

    graphs = [(revision / "model.onnx").read_bytes() for revision in (whole, trimmed)]
    assert graphs[0] == graphs[1]


def test_the_configuration_of_a_tokenizer_wins_over_its_file(tmp_path: Path) -> None:
    """`tokenizer.json` says that no space goes before a text."""
    folder = write_checkpoint(Checkpoint(family="roberta", purpose="text"), tmp_path / "source")
    edit("tokenizer_config.json", tokenizer_class="RobertaTokenizer", add_prefix_space=True)(folder)

    revision = imported(folder, tmp_path / "models")

    tokenizer = tokenizers.Tokenizer.from_file(str(revision / "tokenizer.json"))
    assert tokenizer.encode("Paris", add_special_tokens=False).tokens[0].startswith("Ġ")


@pytest.mark.anyio
@pytest.mark.parametrize("split", [False, True])
async def test_special_tokens_in_texts_are_split_where_that_is_said(
    tmp_path: Path, *, split: bool
) -> None:
    folder = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    edit("tokenizer_config.json", split_special_tokens=split)(folder)
    await asyncio.to_thread(imported, folder, tmp_path / "models")

    async with running_backend(tmp_path / "models", threads=1) as backend:
        text, parameters = "a fine [SEP] film", TokenizeParameters()
        answer = await backend.answer("m", Task.TOKENIZE, text, parameters=parameters)

    assert answer["tokens"].count("[SEP]") == (1 if split else 2)
