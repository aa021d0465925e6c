"""A tokenizer is the one that its class in transformers makes of the files."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.class_tokenizer import (
    ClassTokenizer,
    build_tokenizer,
)
from tests.parity.texts import DATA

_FILES = {"BPE": "bpe", "WordPiece": "wordpiece", "Unigram": "unigram"}
_ANGLES = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def build(
    folder: Path, model: str, config: dict[str, Any] | None, *, model_type: str = "bert"
) -> ClassTokenizer:
    shutil.copyfile(DATA / f"{_FILES[model]}-tokenizer.json", folder / "tokenizer.json")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return build_tokenizer(folder, "tokenizer.json", {"model_type": model_type})


def tokens(tokenizer: ClassTokenizer, text: str) -> list[str]:
    found: list[str] = tokenizer.load().encode(text, add_special_tokens=False).tokens
    return found


@pytest.mark.parametrize(("spaced", "first"), [(True, "Ġ"), (False, "P")])
def test_a_space_goes_before_a_text_where_the_class_is_told_so(
    tmp_path: Path, first: str, *, spaced: bool
) -> None:
    """`tokenizer.json` says that there is none."""
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": spaced}

    built = build(tmp_path, "BPE", config, model_type="roberta")

    assert tokens(built, "Paris is big")[0].startswith(first)
    assert ("pre_tokenizer" in built.changed) is spaced


@pytest.mark.parametrize(
    ("options", "pieces"),
    [
        ({}, ["the"]),
        ({"do_lower_case": False}, ["T", "##h", "##e"]),
    ],
)
def test_a_bert_lowers_texts_unless_it_is_told_not_to(
    tmp_path: Path, options: dict[str, bool], pieces: list[str]
) -> None:
    built = build(tmp_path, "WordPiece", {"tokenizer_class": "BertTokenizerFast", **options})

    assert tokens(built, "The") in (pieces, ["[UNK]"])
    assert (tokens(built, "The") == tokens(built, "the")) is (not options)


def test_the_generic_class_takes_the_file_as_it_is(tmp_path: Path) -> None:
    config = {"tokenizer_class": "TokenizersBackend", "do_lower_case": False}

    built = build(tmp_path, "WordPiece", config)

    assert built.changed == ()
    assert built.text == (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    assert built.types is False


@pytest.mark.parametrize(
    ("config", "model_type", "types"),
    [
        ({"tokenizer_class": "BertTokenizer"}, "bert", True),
        ({"tokenizer_class": "ElectraTokenizer"}, "electra", True),
        ({"tokenizer_class": "DistilBertTokenizer"}, "bert", False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "bert", False),
        ({"tokenizer_class": "BertTokenizer"}, "modernbert", False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}, "bert", False),
        (None, "bert", True),
    ],
)
def test_the_class_says_whether_texts_of_a_pair_are_told_apart(
    tmp_path: Path, config: dict[str, Any] | None, model_type: str, *, types: bool
) -> None:
    built = build(tmp_path, "WordPiece", config, model_type=model_type)

    assert built.types is types
    assert built.config is not None
    assert ("token_type_ids" in built.config["model_input_names"]) is types


def test_what_an_import_writes_is_imported_again_as_it_is(tmp_path: Path) -> None:
    config = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True, **_ANGLES}
    built = build(tmp_path, "BPE", config, model_type="roberta")
    (tmp_path / "tokenizer.json").write_text(built.text)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(built.config))

    again = build_tokenizer(tmp_path, "tokenizer.json", {"model_type": "roberta"})

    assert again.changed == ()
    assert again.text == built.text


@pytest.mark.parametrize("kind", ["BertTokenizer", "TokenizersBackend"])
def test_special_tokens_of_the_configuration_are_added(tmp_path: Path, kind: str) -> None:
    config = {"tokenizer_class": kind, "additional_special_tokens": ["<own>"]}

    built = build(tmp_path, "WordPiece", config)

    assert tokens(built, "a <own> b")[1] == "<own>"
    assert built.changed == ("added_tokens",)


def test_a_separator_of_the_configuration_ends_a_text(tmp_path: Path) -> None:
    config = {"tokenizer_class": "BertTokenizer", "sep_token": "[MASK]"}

    built = build(tmp_path, "WordPiece", config)

    assert built.load().encode("a").tokens[-1] == "[MASK]"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, "`LlamaTokenizer`"),
        ({"tokenizer_class": "RobertaTokenizer"}, "WordPiece"),
        ({"tokenizer_class": "BertTokenizer", "unk_token": None}, "`unk_token` is null"),
    ],
)
def test_a_class_that_cannot_be_built_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartProblem, match=message) as refused:
        build(tmp_path, "WordPiece", config)
    assert '`"tokenizer_class": "TokenizersBackend"`' in str(refused.value)


@pytest.mark.parametrize("known", [1, 2])
def test_types_beyond_those_of_the_model_are_refused(tmp_path: Path, known: int) -> None:
    built = build(tmp_path, "WordPiece", {"tokenizer_class": "BertTokenizer"})

    if known == 2:
        built.check_types(known)
    else:
        with pytest.raises(StartProblem, match="`type_vocab_size` is 1"):
            built.check_types(known)


@pytest.mark.parametrize("text", ["Paris is big", "  (Paris), is BIG!_  ", "...paris\n\nis big"])
def test_siglip_reads_texts_without_case_and_punctuation(tmp_path: Path, text: str) -> None:
    given = {"unk_token": "[UNK]", "eos_token": "[SEP]", "pad_token": "[PAD]"}
    built = build(tmp_path, "Unigram", {"tokenizer_class": "SiglipTokenizer", **given})

    found = tokens(built, text)

    assert found == tokens(built, "paris is big")
    assert found[0].startswith("▁")
    assert built.load().encode(text).tokens == [*found, "[SEP]"]
