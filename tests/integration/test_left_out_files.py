"""`models import` reads all that a folder computes with, or names what it would leave out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from testing.weight_files import write_safetensors
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.imports import run_import
from tests.support.odd_checkpoints import Change, all_of, edit, remove, write

SPARSE = all_of(write("sparse_linear.pt", b"weights"), write("colbert_linear.pt", b"weights"))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence transformer as it is published."""
    folder = tmp_path_factory.mktemp("left") / "good"
    return write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)


def run(folder: Path, *options: str) -> Result:
    return run_import(folder, folder.parent / "m", "--name", "odd", *options)


def folder_with(name: str, *files: str) -> Change:
    def change(folder: Path) -> None:
        for file in files:
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_bytes(b"{}")

    return change


def dense(folder: Path) -> None:
    folder_with("2_Dense", "config.json")(folder)
    write_safetensors(folder / "2_Dense" / "model.safetensors", {"linear.weight": np.ones((8, 32))})


LANGUAGE_MODEL = all_of(
    edit("config.json", architectures=["BertForMaskedLM"]),
    remove("modules.json"),
    lambda folder: shutil.rmtree(folder / "1_Pooling"),
)
REFUSED: dict[str, tuple[Change, list[str]]] = {
    "BGE-M3": (SPARSE, ["sparse_linear.pt", "colbert_linear.pt"]),
    "SetFit": (write("model_head.pkl", b"pickle"), ["model_head.pkl"]),
    "a language model": (LANGUAGE_MODEL, ["BertForMaskedLM"]),
    "a module that is not listed": (dense, ["2_Dense"]),
    "a head in a folder": (folder_with("head", "model.safetensors"), ["head/model.safetensors"]),
    "an adapter": (folder_with("adapters", "a.bin", "b.bin"), ["adapters/a.bin", "adapters/b.bin"]),
    "a regression": (write("head.joblib", b"pickle"), ["head.joblib"]),
    "weights of another name": (write("w.safetensors", b"weights"), ["w.safetensors"]),
}


@pytest.mark.parametrize(("change", "names"), REFUSED.values(), ids=REFUSED)
def test_what_no_answer_would_use_is_refused_by_name(
    sentences: Path, tmp_path: Path, change: Change, names: list[str]
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    change(folder)

    refused = run(folder)
    imported = run(folder, *[f"--ignore={name}" for name in names])

    assert refused.exit_code == 2
    assert len(refused.output.splitlines()) == 1
    assert all(f"`{name}`" in refused.output for name in names)
    assert imported.exit_code == 0, imported.output
    assert all(f"{name}: named by `--ignore`" in imported.output for name in names)


LEFT_OUT: dict[str, tuple[Change, list[str]]] = {
    "the state of a training": (
        all_of(
            *[
                write(name, b"state")
                for name in ("optimizer.pt", "scheduler.pt", "trainer_state.json", "scaler.pt")
            ],
            write("training_args.bin", b"state"),
            write("rng_state_0.pth", b"state"),
        ),
        [
            "optimizer.pt: training state",
            "scheduler.pt: training state",
            "trainer_state.json: training state",
            "training_args.bin: training state",
            "rng_state_0.pth: training state",
            "scaler.pt: training state",
        ],
    ),
    "earlier checkpoints": (
        folder_with("checkpoint-500", "model.safetensors", "optimizer.pt", "config.json"),
        ["checkpoint-500: training state"],
    ),
    "copies": (
        all_of(
            write("pytorch_model.bin", b"pickle"),
            write("tf_model.h5", b"h5"),
            write("flax_model.msgpack", b"flax"),
            write("model-00001-of-00002.safetensors", b"shard"),
            folder_with("onnx", "model_quantized.onnx", "model_O2.onnx"),
            folder_with("openvino", "openvino_model.bin", "openvino_model.xml"),
        ),
        [
            "pytorch_model.bin: a second copy of the weights",
            "tf_model.h5: a second copy of the weights",
            "flax_model.msgpack: a second copy of the weights",
            "model-00001-of-00002.safetensors: a second copy of the weights",
            "onnx: a second copy of the weights",
            "openvino: a second copy of the weights",
        ],
    ),
}


# What folders on the hub hold beside a model, none of which changes an answer.
ON_THE_HUB = all_of(
    *[
        write(name, b"{}")
        for name in (
            *("README.md", ".gitattributes", "config_sentence_transformers.json", "unigram.json"),
            *("special_tokens_map.json", "sentencepiece.bpe.model", "vocab.txt", "train_script.py"),
            *("data_config.json", "generation_config.json", "similarity_evaluation_results.csv"),
            *("model.safetensors.index.json", "pytorch_model.bin.index.json", "pytorch_model.bin"),
            *("pytorch_model-00001-of-00002.bin", "tf_model.h5", "flax_model.msgpack"),
            *("rust_model.ot", "model.fp16.safetensors", "model_quantized.onnx", "64.tflite"),
        )
    ],
    folder_with("2_Normalize", "config.json"),
    folder_with("onnx", "model_O4.onnx", "model_qint8_avx512.onnx", "model.onnx_data"),
    folder_with("openvino", "openvino_model.bin", "openvino_model.xml"),
    folder_with("coreml/feature-extraction/model.mlpackage/Data/weights", "weight.bin"),
    folder_with("gguf", "model-f16.gguf"),
    folder_with("mlx", "weights.npz"),
    folder_with(".git/lfs/objects/ab", "model.safetensors"),
    folder_with(".cache/huggingface", "model.bin"),
    folder_with("eval", "similarity_evaluation_sts-dev_results.csv"),
    folder_with("imgs", "chart.png"),
    folder_with("2024_results", "scores.csv"),
    folder_with("last-checkpoint", "model.safetensors", "optimizer.pt"),
    folder_with("checkpoints/step-100", "model.safetensors"),
    folder_with("logs", "events.out.tfevents.1"),
    folder_with("runs/May01", "events.out.tfevents.1", "1.bin"),
)


def test_a_folder_of_the_hub_needs_nothing_to_be_ignored(sentences: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    modules = json.loads((folder / "modules.json").read_bytes())
    kind = "sentence_transformers.models.Normalize"
    modules += [{"idx": 2, "name": "2", "path": "2_Normalize", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    ON_THE_HUB(folder)

    result = run(folder)

    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("left out")]
    found = {line.split()[2].removesuffix(":") for line in lines}
    assert found == {
        *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "tf_model.h5"),
        *("flax_model.msgpack", "rust_model.ot", "model.fp16.safetensors", "model_quantized.onnx"),
        *(
            "onnx",
            "openvino",
            "coreml",
            "gguf",
            "mlx",
            "last-checkpoint",
            "checkpoints",
            "runs",
            "logs",
        ),
    }


@pytest.mark.parametrize(("change", "lines"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_changes_no_answer_is_left_out_with_a_line(
    sentences: Path, tmp_path: Path, change: Change, lines: list[str]
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    change(folder)

    result = run(folder)

    assert result.exit_code == 0, result.output
    found = [line for line in result.output.splitlines() if line.startswith("left out")]
    assert sorted(found) == sorted(f"left out               {line}" for line in lines)


def test_nothing_is_left_out_of_a_folder_as_it_is_published(sentences: Path) -> None:
    assert "left out" not in run(sentences).output


def test_a_name_to_be_ignored_that_nothing_has_is_told_the_nearest(
    sentences: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    SPARSE(folder)

    result = run(folder, "--ignore", "sparse_linaer.pt")

    assert result.exit_code == 2
    assert "did you mean `sparse_linear.pt`?" in result.output


FOREIGN: dict[str, tuple[dict[str, object], str]] = {
    "an adapter": (
        {"adapter_config.json": {"peft_type": "LORA"}},
        "adapter_model.safetensors` is missing",
    ),
    "GLiNER": ({"gliner_config.json": {}}, "GLiNER"),
    "static embeddings": (
        {
            "modules.json": [
                {"path": "", "type": "sentence_transformers.models.StaticEmbedding"},
            ],
            "tokenizer.json": {},
        },
        "model.safetensors` is missing",
    ),
    "an older layout": (
        {
            "modules.json": [
                {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
            ],
        },
        "load it with sentence-transformers and save it again",
    ),
    "a pipeline of diffusers": ({"model_index.json": {}}, "diffusers"),
    "spaCy": ({"meta.json": {}}, "spaCy"),
}


@pytest.mark.parametrize(("files", "says"), FOREIGN.values(), ids=FOREIGN)
def test_a_folder_of_another_kind_is_named_for_what_it_is(
    tmp_path: Path, files: dict[str, object], says: str
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))

    result = run(folder)

    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1
    assert says in result.output
