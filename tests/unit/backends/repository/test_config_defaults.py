"""A field that `config.json` lacks has the default of its class in transformers."""

import json
from pathlib import Path

import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.repository import tokenizer_class
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.config_defaults import (
    DEFAULTS,
    complete_config,
    padding_position,
)
from sluicegate.backends.repository.manifest import ClassifierManifest
from tests.parity.checkpoints import (
    FAMILIES,
    FEWER_FAMILIES,
    Checkpoint,
    Family,
    write_checkpoint,
)


@pytest.mark.parametrize("family", [*FAMILIES, *FEWER_FAMILIES])
def test_a_trimmed_config_makes_the_same_model(tmp_path: Path, family: Family) -> None:
    folder = write_checkpoint(Checkpoint(family=family, purpose="text"), tmp_path / "source")
    convert(folder, tmp_path / "whole" / "m" / "1")
    config = json.loads((folder / "config.json").read_bytes())
    defaults = DEFAULTS[config["model_type"]]
    trimmed = {n: v for n, v in config.items() if n not in defaults or defaults[n] != v}
    (folder / "config.json").write_text(json.dumps(trimmed))

    convert(folder, tmp_path / "trimmed" / "m" / "1")

    assert len(trimmed) < len(config)
    graphs = [tmp_path / name / "m" / "1" / "model.onnx" for name in ("whole", "trimmed")]
    assert graphs[0].read_bytes() == graphs[1].read_bytes()
    manifests = [read_catalogue(tmp_path / n).models["m"].manifest for n in ("whole", "trimmed")]
    assert manifests[0] == manifests[1]


def test_other_names_of_a_field_count_where_its_own_is_absent() -> None:
    found = complete_config({"model_type": "distilbert", "hidden_size": 32, "n_layers": 2})

    assert (found["dim"], found["n_layers"], found["n_heads"]) == (32, 2, 12)


def test_a_model_without_a_type_gets_no_defaults() -> None:
    assert complete_config({"hidden_size": 32}) == {"hidden_size": 32}


@pytest.mark.parametrize(
    ("config", "padding"),
    [
        ({"model_type": "roberta"}, 1),
        ({"model_type": "roberta", "pad_token_id": 0}, 0),
        ({"model_type": "mpnet", "pad_token_id": 5}, 1),
        ({"model_type": "longformer"}, 1),
        ({"model_type": "bert", "pad_token_id": 5}, None),
    ],
)
def test_positions_are_counted_from_the_padding(
    config: dict[str, object], padding: int | None
) -> None:
    assert padding_position(complete_config(config)) == padding


def test_positions_without_a_padding_are_refused() -> None:
    with pytest.raises(ValueError, match="`pad_token_id` is `None`"):
        padding_position(complete_config({"model_type": "roberta", "pad_token_id": None}))


def test_labels_without_names_are_numbered(tmp_path: Path) -> None:
    checkpoint = Checkpoint(family="bert", purpose="text")
    convert(write_checkpoint(checkpoint, tmp_path / ".source"), tmp_path / "m" / "1")
    path = tmp_path / "m" / "1" / "config.json"
    config = json.loads(path.read_bytes())
    del config["id2label"]
    path.write_text(json.dumps(config | {"num_labels": 3}))

    manifest = read_catalogue(tmp_path).models["m"].manifest

    assert isinstance(manifest, ClassifierManifest)
    assert manifest.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_a_version_that_infers_otherwise_has_another_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier one had generic tokenizers without `model_input_names` send types."""
    checkpoint = Checkpoint(family="bert", purpose="cross")
    convert(write_checkpoint(checkpoint, tmp_path / ".source"), tmp_path / "m" / "1")
    config = {"tokenizer_class": tokenizer_class.GENERIC}
    (tmp_path / "m" / "1" / "tokenizer_config.json").write_text(json.dumps(config))
    now = read_catalogue(tmp_path).models["m"]

    before = dict(tokenizer_class.CLASSES) | {tokenizer_class.GENERIC: True}
    monkeypatch.setattr(tokenizer_class, "CLASSES", before)
    old = read_catalogue(tmp_path).models["m"]

    assert isinstance(now.manifest, ClassifierManifest)
    assert isinstance(old.manifest, ClassifierManifest)
    assert (old.manifest.token_types, now.manifest.token_types) == (True, False)
    assert old.revision != now.revision
