"""Every odd folder is served right, or refused in one sentence that names the owner's file."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.wire.protocol import Task
from testing.weight_files import write_safetensors
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.backend_calls import Backend, running_backend
from tests.support.imports import run_import
from tests.support.odd_checkpoints import (
    GRAPH,
    WEIGHTS,
    Change,
    all_of,
    broken_number,
    edit,
    external,
    fewer_shards,
    graph,
    halve,
    head_without_layer,
    manifest,
    more_tokens,
    nan_weight,
    other_names,
    remove,
    rename,
    sharded,
    static_axes,
    unknown_numbers,
    weights,
    write,
)

TEXT = ("A man sleeps.", "He rests.")
LABELS = "contradiction,neutral,entailment"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good folder, with its graph hidden in it for those that bring one."""
    folder = tmp_path_factory.mktemp("odd") / "good"
    write_checkpoint(Checkpoint(family="bert", purpose="text"), folder)
    convert(folder, folder / ".converted")
    return folder


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good sentence transformer, with a dense layer."""
    folder = tmp_path_factory.mktemp("odd") / "good"
    write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)
    add_module(folder, "Dense", {"in_features": 32, "out_features": 8, "bias": False})
    write_safetensors(folder / "2_Dense" / WEIGHTS, {"linear.weight": np.ones((8, 32))})
    return folder


def add_module(folder: Path, kind: str, config: dict[str, Any], prefix: str = "st.") -> None:
    listed = json.loads((folder / "modules.json").read_bytes())[:2]
    kind_name = f"{prefix.replace('st.', 'sentence_transformers.models.')}{kind}"
    listed.append({"idx": 2, "name": "2", "path": f"2_{kind}", "type": kind_name})
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / f"2_{kind}").mkdir(exist_ok=True)
    (folder / f"2_{kind}" / "config.json").write_text(json.dumps(config))


def run(folder: Path, *options: str, name: str = "odd") -> Result:
    return run_import(folder, folder.parent / "m", "--name", name, *options)


NAMED = ["--input", "input_ids=tokens_in", "--input", "attention_mask=mask"]
NAMED += ["--output", "logits=scores"]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"


SERVED: dict[str, tuple[Change, list[str], float]] = {
    "as it is": (all_of(), [], 1e-6),
    "bf16": (weights("BF16"), [], 3e-2),
    "fp16": (weights("F16"), [], 3e-3),
    "fp64": (weights("F64"), [], 1e-6),
    "sharded": (sharded, [], 1e-6),
    "a pickle beside": (write("pytorch_model.bin", b"pickle"), [], 1e-6),
    "a head of the training": (weights(cls__predictions__bias=np.ones(4)), [], 1e-6),
    "exported": (graph("onnx/model.onnx"), [], 1e-4),
    "weights beside the graph": (external, [], 1e-4),
    "other names": (graph(rewrite=other_names), NAMED, 1e-4),
    "labels by option": (edit("config.json", id2label=None), ["--labels", LABELS], 1e-6),
    "a graph of another name": (
        all_of(graph("encoder.onnx"), manifest("graph: encoder.onnx\n")),
        [],
        1e-4,
    ),
    "names in model.yaml": (
        all_of(
            graph(rewrite=other_names),
            manifest("inputs: {input_ids: tokens_in, attention_mask: mask}\noutput: scores\n"),
        ),
        [],
        1e-4,
    ),
    "a tokenizer of another name": (
        all_of(rename("tokenizer.json", "words.json"), manifest("tokenizer: words.json\n")),
        [],
        1e-6,
    ),
}


@pytest.fixture(scope="module")
async def imported(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Backend, dict[str, Result]]]:
    """A backend over all of them, each a model named by its place, and how their imports ended."""
    root = tmp_path_factory.mktemp("served")
    shutil.copytree(checkpoint / ".converted", root / "m" / "good" / "1")
    results = {}
    for place, (name, (change, options, _)) in enumerate(SERVED.items()):
        folder = shutil.copytree(checkpoint, root / f"own-{place}")
        change(folder)
        results[name] = await asyncio.to_thread(run, folder, *options, name=f"odd-{place}")
    async with running_backend(root / "m", threads=1) as backend:
        yield backend, results


@pytest.mark.anyio
@pytest.mark.parametrize("name", SERVED)
async def test_an_odd_folder_is_served_as_the_good_one_is(
    imported: tuple[Backend, dict[str, Result]], name: str
) -> None:
    backend, results = imported
    assert results[name].exit_code == 0, results[name].output
    models = "good", f"odd-{list(SERVED).index(name)}"

    good, odd = [await backend.answer(model, Task.CLASSIFY, TEXT) for model in models]

    scores = [{each["label"]: each["score"] for each in found["labels"]} for found in (good, odd)]
    assert scores[1] == pytest.approx(scores[0], abs=SERVED[name][2])


# What is refused: the change, options, the file that is named, and what the sentence says.
REFUSED: dict[str, tuple[Change, list[str], str, str]] = {
    "no config.json": (remove("config.json"), [], "", "no `config.json`"),
    "an empty config.json": (write("config.json", b"{}"), [], "", "has no `model_type`"),
    "half a config.json": (halve("config.json"), [], "config.json", "cannot read"),
    "no tokenizer": (remove("tokenizer.json"), [], "", "AutoTokenizer"),
    "a slow tokenizer": (rename("tokenizer.json", "vocab.txt"), [], "", "it has `vocab.txt`"),
    "half a tokenizer": (halve("tokenizer.json"), [], "tokenizer.json", "tokenizer"),
    "no weights": (remove(WEIGHTS), [], "", "save_pretrained"),
    "empty weights": (write(WEIGHTS, b""), [], WEIGHTS, "as safetensors"),
    "half the weights": (halve(WEIGHTS), [], WEIGHTS, "cut short"),
    "a pointer to weights": (write(WEIGHTS, LFS), [], WEIGHTS, "git lfs pull"),
    "a pickle alone": (rename(WEIGHTS, "pytorch_model.bin"), [], "", "is a pickle"),
    "renamed weights": (rename(WEIGHTS, "w.safetensors"), [], "", "it has `w.safetensors`"),
    "a renamed graph": (graph("encoder.onnx"), [], "", "it has `encoder.onnx`"),
    "half a graph": (all_of(graph(), halve(GRAPH)), [], GRAPH, "cut short"),
    "a pointer to a graph": (all_of(graph(), write(GRAPH, LFS)), [], GRAPH, "git lfs pull"),
    "no weights beside the graph": (
        all_of(external, remove("big.bin")),
        [],
        "big.bin",
        "is missing",
    ),
    "half of those beside it": (all_of(external, halve("big.bin")), [], "big.bin", "cut short"),
    "a shard less": (
        all_of(sharded, remove("model-00002-of-00002.safetensors")),
        [],
        "model-00002-of-00002.safetensors",
        "No such file",
    ),
    "half a shard": (
        all_of(sharded, halve("model-00001-of-00002.safetensors")),
        [],
        "model-00001-of-00002.safetensors",
        "cut short",
    ),
    "a weight less in a shard": (
        fewer_shards,
        [],
        "model.safetensors.index.json",
        "does not have it",
    ),
    "numbers that are not read": (unknown_numbers, [], WEIGHTS, "F8X"),
    "NaN": (broken_number(np.nan), [], "", "NaN"),
    "infinity": (broken_number(np.inf), [], "", "infinity"),
    "NaN in a graph": (graph(rewrite=nan_weight), [], GRAPH, "NaN"),
    "too few labels": (edit("config.json", id2label={"0": "a"}), [], "", "1 `labels`"),
    "labels from one": (
        edit("config.json", id2label={"1": "a", "2": "b", "3": "c"}),
        [],
        "config.json",
        "does not count from 0",
    ),
    "equal labels": (edit("config.json", id2label=dict.fromkeys("012", "a")), [], "", "twice"),
    "an unknown problem": (edit("config.json", problem_type="mine"), [], "config.json", "`mine`"),
    "a head that is not named": (head_without_layer, [], "config.json", "names no head"),
    "a head without weights": (weights(without="classifier"), [], "", "of the head is missing"),
    "layers too many": (edit("config.json", num_hidden_layers=3), [], "", "is missing"),
    "layers not used": (
        edit("config.json", num_hidden_layers=1),
        [],
        "config.json",
        "says 1 layer",
    ),
    "a wrong shape": (weights(classifier__weight=np.ones((3, 9))), [], "", "cannot be served"),
    "tokens beyond the embeddings": (more_tokens, [], "tokenizer.json", "`<mine>` has the id 800"),
    "the same over a graph": (all_of(graph(), more_tokens), [], "tokenizer.json", "`<mine>`"),
    "own code": (edit("config.json", auto_map={"AutoModel": "m.M"}), [], "config.json", "auto_map"),
    "an own tokenizer": (
        edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["m.T", None]}),
        [],
        "tokenizer_config.json",
        "auto_map",
    ),
    "an adapter": (edit("adapter_config.json", r=8), [], "adapter_config.json", "merge_and_unload"),
    "an adapter's weights": (
        weights(bert__a__lora_A__weight=np.ones(2)),
        [],
        "",
        "merge_and_unload",
    ),
    "layers of loralib": (
        weights(bert__encoder__layer__0__attention__self__query__lora_A=np.ones(2)),
        [],
        "",
        "merge_and_unload",
    ),
    "stacked adapters": (weights(adapters__choices=np.ones((2, 2))), [], "", "merge_and_unload"),
    "layers of its own": (weights(extra__weight=np.ones(2)), [], "", "no layer"),
    "quantized weights": (
        edit("config.json", quantization_config={"bits": 4}),
        [],
        "config.json",
        "quantization_config",
    ),
    "static axes": (graph(rewrite=static_axes), [], GRAPH, "dynamic axes"),
    "names not given": (graph(rewrite=other_names), NAMED[-2:], GRAPH, "--input input_ids=NAME"),
    "a wrong name": (graph(), ["--input", "input_ids=x"], GRAPH, "`x`"),
    "an unknown class of tokenizer": (
        edit("tokenizer_config.json", tokenizer_class="LlamaTokenizerFast"),
        [],
        "tokenizer_config.json",
        '`"tokenizer_class": "TokenizersBackend"`',
    ),
    "a class of another vocabulary": (
        edit("tokenizer_config.json", tokenizer_class="RobertaTokenizer"),
        [],
        "tokenizer.json",
        "WordPiece",
    ),
    "cut at the beginning": (
        edit("tokenizer_config.json", truncation_side="left"),
        ["--truncate"],
        "tokenizer_config.json",
        "`truncation_side`",
    ),
    "no YAML": (manifest("labels: ["), [], "model.yaml", "as YAML"),
    "an alias": (manifest("a: &a {b: c}\nd: {<<: *a}"), [], "model.yaml", "it has an alias"),
    "an odd boolean": (manifest("truncate: !!bool maybe"), [], "model.yaml", "as YAML"),
    "a large manifest": (manifest(f"a: 1{':1' * (1 << 20)}"), [], "model.yaml", "is larger than"),
    "an unknown field": (manifest("lables: [a]\n"), [], "model.yaml", "`lables`"),
    "a graph that is not there": (manifest("graph: g.onnx\n"), [], "model.yaml", "`g.onnx`"),
    "an algorithm": (manifest("kind: algorithm\n"), [], "model.yaml", "can be imported"),
    "an own activation": (
        all_of(
            weights(classifier__weight=np.ones((1, 32)), classifier__bias=np.ones(1)),
            edit("config.json", id2label={"0": "a"}),
            edit("config_sentence_transformers.json", activation_fn="mine.Activation"),
        ),
        [],
        "config_sentence_transformers.json",
        "`mine.Activation`",
    ),
}


def check_refusal(folder: Path, options: list[str], file: str, says: str) -> None:
    """Import a folder, and see the refusal: one line, the file, nothing written."""
    result = run(folder, *options)

    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    assert str(folder / file) in result.output
    assert says in result.output
    assert list((folder.parent / "m").iterdir()) == []


@pytest.mark.parametrize(("change", "options", "file", "says"), REFUSED.values(), ids=REFUSED)
def test_an_odd_folder_is_refused_in_one_sentence(
    checkpoint: Path, tmp_path: Path, change: Change, options: list[str], file: str, says: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "own")
    change(folder)

    check_refusal(folder, options, file, says)


def module(kind: str, prefix: str = "st.", **config: Any) -> Change:
    return lambda folder: add_module(folder, kind, config, prefix)


DENSE = "2_Dense/config.json"
SENTENCES: dict[str, tuple[Change, str, str]] = {
    "a module that is not computed": (module("CNN"), "modules.json", "`CNN`"),
    "a module of its own": (module("M", "own."), "modules.json", "`own.M`"),
    "no list of modules": (remove("modules.json"), "modules.json", "`2_Dense`"),
    "a list that is none": (write("modules.json", b"{}"), "modules.json", "list of modules"),
    "no pooling": (remove("1_Pooling/config.json"), "1_Pooling/config.json", "is missing"),
    "another pooling": (
        edit("1_Pooling/config.json", pooling_mode="attention"),
        "1_Pooling/config.json",
        "`attention`",
    ),
    "no weights of a module": (remove(f"2_Dense/{WEIGHTS}"), f"2_Dense/{WEIGHTS}", "is missing"),
    "a module's pickle": (
        rename(f"2_Dense/{WEIGHTS}", "2_Dense/pytorch_model.bin"),
        f"2_Dense/{WEIGHTS}",
        "is a pickle",
    ),
    "another width": (edit(DENSE, in_features=16), "", "`2_Dense`: the weights"),
    "an own activation": (edit(DENSE, activation_function="own.A"), "", "`own.A`"),
    "a residual": (edit(DENSE, use_residual=True), DENSE, "`use_residual`"),
    "vectors of tokens": (
        edit(DENSE, module_input_name="token_embeddings"),
        DENSE,
        "`module_input_name`",
    ),
    "an unknown prompt": (
        edit("config_sentence_transformers.json", default_prompt_name="query"),
        "config_sentence_transformers.json",
        "`prompts`",
    ),
    "a length of queries": (
        edit("sentence_bert_config.json", query_length=8),
        "sentence_bert_config.json",
        "`query_length`",
    ),
    "a chat template": (
        edit("sentence_bert_config.json", modality_config={"message": {}}),
        "sentence_bert_config.json",
        "is not served",
    ),
    "a head, too": (
        edit("config.json", architectures=["BertForTokenClassification"]),
        "modules.json",
        "names the head",
    ),
}


@pytest.mark.parametrize(("change", "file", "says"), SENTENCES.values(), ids=SENTENCES)
def test_an_odd_sentence_transformer_is_refused_in_one_sentence(
    sentences: Path, tmp_path: Path, change: Change, file: str, says: str
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    change(folder)

    check_refusal(folder, [], file, says)
