"""An import refuses, by name, what it cannot make an output of."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.repository.manifest import read_manifest
from testing.weight_files import write_safetensors
from tests.parity.library_fixtures import OUTPUTS, unpack
from tests.parity.library_served import import_folder

Change = Callable[[Path], object]


def edit(name: str, **fields: Any) -> Change:
    def change(folder: Path) -> None:
        path = folder / name
        document = json.loads(path.read_bytes()) if path.is_file() else {}
        path.write_text(json.dumps(document | fields))

    return change


def write_pickle(folder: Path) -> None:
    (folder / "sparse_linear.safetensors").rename(folder / "sparse_linear.pt")


def write_narrow_head(folder: Path) -> None:
    weights = {"weight": np.ones((1, 7), dtype=np.float32)}
    write_safetensors(folder / "sparse_linear.safetensors", weights)


LIMITS = "sentence_bert_config.json"
SETTINGS = "config_sentence_transformers.json"
REFUSED: dict[str, tuple[str, Change, str]] = {
    "a pickle": ("joined-xlm-roberta", write_pickle, "sparse_linear.safetensors"),
    "a head of another width": ("joined-xlm-roberta", write_narrow_head, "32 inputs"),
    "an unknown prefix": ("late-bert", edit(SETTINGS, query_prefix="[X] "), "`query_prefix`"),
    "no mask token": ("late-bert", edit("tokenizer_config.json", mask_token=None), "`mask_token`"),
    "a residual": ("late-bert", edit("1_Dense/config.json", use_residual=True), "use_residual"),
    "another pooling": (
        "splade-bert",
        edit("1_SpladePooling/config.json", pooling_strategy="mean"),
        "`mean`",
    ),
    "another expansion": (
        "native-electra",
        edit(LIMITS, query_expansion={"strategy": "floor", "length": 8}),
        "`query_expansion`",
    ),
    "a skiplist of queries": (
        "native-electra",
        edit("2_MultiVectorMask/config.json", skiplist_tasks=["query"]),
        "`skiplist_tasks`",
    ),
    "another activation": ("splade-bert", edit("config.json", hidden_act="relu"), "relu"),
}


@pytest.mark.parametrize(("name", "change", "named"), REFUSED.values(), ids=REFUSED)
def test_what_no_output_can_be_made_of_is_refused(
    tmp_path: Path, name: str, change: Change, named: str
) -> None:
    folder = unpack(name, tmp_path / "sources", fixtures=OUTPUTS)
    change(folder)

    try:
        reason = import_folder(folder, tmp_path / "models")
    except ModelProblem as problem:
        reason = str(problem)

    assert reason is not None
    assert named in reason


def test_a_head_alone_makes_its_own_output(tmp_path: Path) -> None:
    folder = unpack("joined-xlm-roberta", tmp_path / "sources", fixtures=OUTPUTS)
    (folder / "colbert_linear.safetensors").unlink()
    (folder / "sparse_linear.pt").write_bytes(b"a pickle of the same weights")

    assert import_folder(folder, tmp_path / "models") is None

    (manifest,) = (tmp_path / "models").glob("*/1/model.yaml")
    fields = yaml.safe_load(manifest.read_text())
    assert fields["outputs"] == {"pooled": "pooled", "joined": "joined"}
    assert "sparse" in fields
    assert "multi_vector" not in fields


_ENCODER = {
    "kind": "encoder",
    "graph": "model.onnx",
    "tokenizer": "tokenizer.json",
    "max_tokens": 32,
    "dimensions": 8,
}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"outputs": {"pooled": "p", "joined": "j"}}, "`sparse` or `multi_vector`"),
        ({"outputs": {"joined": "j"}, "sparse": {}}, "`pooled`"),
        ({"outputs": {"pooled": "p"}, "sparse": {"vocabulary": 9}}, "9 wide"),
        ({"outputs": {"pooled": "p"}, "multi_vector": {"dimensions": 8}}, "8 wide"),
        (
            {"outputs": {"tokens": "t"}, "multi_vector": {"dimensions": 8}, "sparse": {}},
            "`joined`",
        ),
        (
            {"outputs": {"tokens": "t"}, "multi_vector": {"dimensions": 8}, "pooling": "mean"},
            "`pooling`",
        ),
        (
            {
                "outputs": {"tokens": "t"},
                "multi_vector": {"dimensions": 8},
                "prompts": {"query": "q: "},
            },
            "`prompts`",
        ),
    ],
)
def test_outputs_that_contradict_each_other_are_refused(
    tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    (tmp_path / "model.yaml").write_bytes(msgspec.json.encode(_ENCODER | fields))

    with pytest.raises(ModelProblem, match=named):
        read_manifest(tmp_path, lambda name: tmp_path / name, {})
