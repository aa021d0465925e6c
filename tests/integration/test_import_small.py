"""`models import` refuses static models, SetFit heads and adapters that it cannot compute."""

import io
import json
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import Result
from onnx import TensorProto, helper
from typing_extensions import override

from sluicegate.backends.bulk.runner import BulkResult, BulkRunner
from testing.weight_files import write_safetensors
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.parity.fewer_families import HIDDEN
from tests.parity.texts import DATA
from tests.support.imports import run_import
from tests.support.odd_checkpoints import Change, all_of, edit, remove, write

QUERY = "bert.encoder.layer.0.attention.self.query"
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "owner/base", "task_type": "SEQ_CLS"}


def run(folder: Path, *options: object) -> Result:
    return run_import(folder, folder.parent / "m", "--name", "own", *options)


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert len(result.output.splitlines()) == 1
    return result.output


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "good"
    return write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path, kind: str) -> None:
        self._written = (path, kind)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, self._written)


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        ("LogisticRegression", ["skops.io.dump(model.model_head"]),
        ("SetFitHead", ["save_file(", "temperature"]),
    ],
)
def test_a_pickled_head_is_refused_with_what_converts_it(
    sentences: Path, tmp_path: Path, kind: str, lines: list[str]
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    (folder / "model_head.pkl").write_bytes(pickle.dumps(Trap(tmp_path / "sprung", kind)))

    output = refused(run(folder))

    assert all(line in output for line in [*lines, "--ignore model_head.pkl"])
    assert not (tmp_path / "sprung").exists()


def skops(kind: str, **arrays: Any) -> Change:
    """Write an estimator as skops does."""

    def change(folder: Path) -> None:
        fields: dict[str, Any] = {"solver": {"content": '"lbfgs"'}}
        with zipfile.ZipFile(folder / "model_head.skops", "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.save(file, array)
                fields[name] = {"type": "numpy", "file": f"{name}.npy"}
            schema = {"__class__": kind, "content": {"content": fields}}
            archive.writestr("schema.json", json.dumps(schema))

    return change


def onnx_head(*, scaled: bool) -> Change:
    """Write a head for two labels, whose scores a last node scales."""

    def change(folder: Path) -> None:
        classifier = helper.make_node(
            "LinearClassifier",
            ["X"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=[0.5] * HIDDEN + [-0.5] * HIDDEN,
            intercepts=[0.0, 1.0],
            classlabels_ints=[0, 1],
            post_transform="SOFTMAX",
        )
        last = helper.make_node("Add" if scaled else "Max", ["scores", "scores"], ["probabilities"])
        graph = helper.make_graph(
            [classifier, last],
            "head",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, [None, HIDDEN])],
            [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [None, 2])],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        onnx.save(
            helper.make_model(graph, opset_imports=opsets, ir_version=8),
            str(folder / "model_head.onnx"),
        )

    return change


def write_tensors(path: Path, places: dict[str, Any], metadata: dict[str, str]) -> None:
    """Write a safetensors file with columns of zeros at the given places."""
    header: dict[str, Any] = {"__metadata__": metadata}
    for name, (begin, end) in places.items():
        header[name] = {
            "dtype": "F32",
            "shape": [(end - begin) // 4, 1],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(64))


def deep_schema(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model_head.skops", "w") as archive:
        archive.writestr("schema.json", "[" * 200_000)


def one_large_array_often(folder: Path) -> None:
    """Write many estimators that name the same 8 MiB, which are small in the file."""
    layer = {"coef_": np.zeros((1, 2**20)), "intercept_": np.zeros(1), "classes_": np.arange(2)}
    skops("LogisticRegression", **layer)(folder)
    with zipfile.ZipFile(folder / "model_head.skops") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(files["schema.json"])
    estimators = {"content": [schema] * 33}
    fields = {"content": {"content": {"estimators_": estimators}}}
    files["schema.json"] = json.dumps({"__class__": "OneVsRestClassifier"} | fields).encode()
    with zipfile.ZipFile(folder / "model_head.skops", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def petabytes() -> bytes:
    """Return the start of a `.npy` file whose header promises petabytes."""
    with io.BytesIO() as file:
        shape = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
        np.lib.format.write_array_header_1_0(file, shape)
        return file.getvalue()


def replace_array(name: str, content: bytes) -> Change:
    def change(folder: Path) -> None:
        path = folder / "model_head.skops"
        with zipfile.ZipFile(path) as archive:
            files = {each: archive.read(each) for each in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for each, old in files.items():
                archive.writestr(each, content if each == f"{name}.npy" else old)

    return change


TWO = {"coef_": np.ones((1, HIDDEN)), "intercept_": np.zeros(1), "classes_": np.arange(2)}
WEIGHT = np.ones((2, HIDDEN), dtype=np.float32)
HEADS: dict[str, tuple[Change, str]] = {
    "another estimator": (skops("SVC", **TWO), "`SVC` is not supported"),
    "not a zip": (write("model_head.skops", b"text"), "cannot be read as a head"),
    "objects": (
        skops("LogisticRegression", **TWO | {"classes_": np.array(["a", None], dtype=object)}),
        "cannot be read as a head",
    ),
    "too few labels": (
        all_of(skops("LogisticRegression", **TWO), edit("config_setfit.json", labels=["one"])),
        "`labels` has no name",
    ),
    "another width": (
        skops("LogisticRegression", **TWO | {"coef_": np.ones((1, 3))}),
        f"is for 3 values, but a vector has {HIDDEN}",
    ),
    "no temperature": (
        lambda folder: write_safetensors(
            folder / "model_head.safetensors", {"linear.weight": WEIGHT}
        ),
        "the metadata lacks temperature",
    ),
    "a wrong temperature": (
        lambda folder: write_tensors(
            folder / "model_head.safetensors",
            {"linear.weight": [0, 4]},
            {"temperature": "hot", "eps": "1", "multitarget": "True"},
        ),
        "could not convert",
    ),
    "deep JSON": (deep_schema, "nests too deeply"),
    "an array of petabytes": (
        all_of(skops("LogisticRegression", **TWO), replace_array("coef_", petabytes())),
        "Unable to allocate",
    ),
    "an array named often": (one_large_array_often, "its content is larger than 268435456 bytes"),
    "complex numbers": (
        skops("LogisticRegression", **TWO | {"coef_": np.ones((1, HIDDEN)) * 1j}),
        "not real numbers",
    ),
    "numbers in a row": (
        skops("LogisticRegression", **TWO | {"coef_": np.ones(HIDDEN)}),
        "cannot be read as a head",
    ),
    "aspects": (
        all_of(
            skops("LogisticRegression", **TWO), edit("config_setfit.json", spacy_model="en_core")
        ),
        "`spacy_model` finds the aspects",
    ),
    "more than a layer": (onnx_head(scaled=True), "does not only compute"),
    "a default prompt": (
        all_of(
            skops("LogisticRegression", **TWO),
            edit(
                "config_sentence_transformers.json",
                prompts={"own": "Text: "},
                default_prompt_name="own",
            ),
        ),
        "`default_prompt_name` is not supported",
    ),
}


@pytest.mark.parametrize(("change", "says"), HEADS.values(), ids=HEADS)
def test_a_head_that_cannot_be_computed_is_refused(
    sentences: Path, tmp_path: Path, change: Change, says: str
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    change(folder)

    assert says in refused(run(folder))


def test_a_head_makes_a_classifier_and_its_pickle_is_left_out(
    sentences: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    onnx_head(scaled=False)(folder)
    all_of(write("model_head.pkl", b"x"), edit("config_setfit.json", labels=["a", "b"]))(folder)

    result = run(folder)

    assert result.exit_code == 0, result.output
    assert "left out               model_head.pkl: a second copy of the head" in result.output
    assert "labels                 a, b" in result.output


def test_a_head_that_is_ignored_leaves_an_encoder(sentences: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sentences, tmp_path / "own")
    skops("LogisticRegression", **TWO)(folder)

    result = run(folder, "--ignore", "model_head.skops")

    assert result.exit_code == 0, result.output
    assert "tasks                  embed, rerank" in result.output


def write_adapter(folder: Path, module: str = QUERY, **config: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(ADAPTER | {"r": 2} | config))
    first, second = np.full((2, HIDDEN), 0.1), np.full((HIDDEN, 2), 0.3)
    names = [f"base_model.model.{module}.lora_{each}.weight" for each in "AB"]
    write_safetensors(
        folder / "adapter_model.safetensors", dict(zip(names, [first, second], strict=True))
    )
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "base"
    return write_checkpoint(Checkpoint(family="bert", purpose="text"), folder)


ADAPTERS: dict[str, tuple[dict[str, Any], str]] = {
    "DoRA": ({"use_dora": True}, "`use_dora` is not supported"),
    "a bias of LoRA": ({"lora_bias": True}, "`lora_bias` is not supported"),
    "IA3": ({"peft_type": "IA3"}, "`peft_type` is `IA3`"),
    "PiSSA": ({"init_lora_weights": "pissa"}, "`init_lora_weights` is `pissa`"),
    "another task": ({"task_type": "QUESTION_ANS"}, "`task_type` is `QUESTION_ANS`"),
    "another base": ({"module": "bert.layers.0.query"}, "no weight `bert.layers.0.query.weight`"),
    "no number": ({"lora_alpha": "x"}, "`lora_alpha` cannot be `x`"),
    "no task": ({"task_type": ["x"]}, "`task_type` cannot be"),
    "a wrong pattern": ({"alpha_pattern": {"(": 1}}, "no regular expression"),
    "another width": ({"module": "bert.pooler.dense.lora"}, "no weight"),
}


@pytest.mark.parametrize(("config", "says"), ADAPTERS.values(), ids=ADAPTERS)
def test_another_adapter_is_refused_by_name(
    base: Path, tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    output = refused(run(write_adapter(tmp_path / "own", **config), "--base", base))

    assert says in output
    assert "merge_and_unload" in output


def test_an_adapter_needs_its_base_and_other_folders_have_none(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "own")

    alone = refused(run(adapter))
    wrong = refused(run(shutil.copytree(base, tmp_path / "base"), "--base", base))

    assert "adapter of `owner/base`" in alone
    assert "`--base PATH`" in alone
    assert "`--base` is only for adapters" in wrong


def test_adapters_of_one_base_are_revisions_of_one_model(base: Path, tmp_path: Path) -> None:
    for place, alpha in enumerate((1, 4)):
        adapter = write_adapter(tmp_path / f"own-{place}", lora_alpha=alpha)
        result = run(adapter, "--base", base)
        assert result.exit_code == 0, result.output

    graphs = [tmp_path / "m" / "own" / number / "model.onnx" for number in "12"]
    assert graphs[0].read_bytes() != graphs[1].read_bytes()


def test_a_head_beside_an_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "own")
    skops("LogisticRegression", **TWO)(adapter)

    output = refused(run(adapter, "--base", base))

    assert "`model_head.skops`: weights or modules that the import cannot use" in output


def test_an_adapter_of_a_family_without_graphs_is_refused(base: Path, tmp_path: Path) -> None:
    other = shutil.copytree(base, tmp_path / "base")
    edit("config.json", model_type="xlnet")(other)

    output = refused(run(write_adapter(tmp_path / "own"), "--base", other))

    assert "no adapter can be merged into a `xlnet`" in output


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder of model2vec."""
    folder = tmp_path / "own"
    folder.mkdir()
    shutil.copyfile(DATA / "wordpiece-tokenizer.json", folder / "tokenizer.json")
    write_safetensors(folder / "model.safetensors", {"embeddings": np.ones((800, 4))})
    (folder / "config.json").write_text(json.dumps({"normalize": True}))
    return folder


def tensors(**given: Any) -> Change:
    return lambda folder: write_safetensors(folder / "model.safetensors", given)


TABLES: dict[str, tuple[Change, str]] = {
    "too few rows": (tensors(embeddings=np.ones((9, 4))), "`embeddings` has 9 rows"),
    "a NaN": (tensors(embeddings=np.full((800, 4), np.nan)), "`embeddings` has a NaN"),
    "too few weights": (
        tensors(embeddings=np.ones((800, 4)), weights=np.ones(9)),
        "`weights` has 9 rows",
    ),
    "a wrong mapping": (
        tensors(embeddings=np.ones((9, 4)), mapping=np.full(800, 9)),
        "`mapping` names a row",
    ),
    "a wrong limit": (edit("config.json", max_length="long"), "`max_length` must be a number"),
    "another library's head": (write("pipeline.skops", b"x"), "`pipeline.skops`: weights"),
    "a tokenizer elsewhere": (
        write("model.yaml", b"tokenizer: ../tokenizer.json"),
        "`tokenizer` must be a file in the folder",
    ),
    "a graph elsewhere": (
        write("model.yaml", b"graph: /model.onnx"),
        "`graph` must be a file in the folder",
    ),
    "deep JSON": (write("config.json", b"[" * 200_000), "cannot read"),
    "no tokenizer": (remove("tokenizer.json"), "cannot be read as a tokenizer"),
}


@pytest.mark.parametrize(("change", "says"), TABLES.values(), ids=TABLES)
def test_a_table_that_cannot_be_computed_is_refused(table: Path, change: Change, says: str) -> None:
    change(table)

    assert says in refused(run(table))


@pytest.mark.parametrize(("setting", "rows"), [(None, 64), (7, 7)])
def test_a_static_model_runs_more_rows_at_once_than_others(
    table: Path, setting: int | None, rows: int
) -> None:
    run(table)

    models = table.parent / "m"
    with BulkRunner(models, model="own", task="embed", max_batch_rows=setting) as runner:
        assert f"batches of {rows} rows" in runner.execution


def test_openvino_computes_a_static_model_alike(table: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(800, 4))
    tensors(embeddings=vectors, weights=np.linspace(0, 1, 800))(table)
    run(table)

    found = []
    for provider in ("cpu", "openvino"):
        models = table.parent / "m"
        with BulkRunner(models, model="own", task="embed", provider=provider) as runner:
            (result,) = runner.run(["A text to embed"])
            assert isinstance(result, BulkResult)
            found.append(result.value["embedding"])

    assert np.abs(found[0] - found[1]).max() < 1e-5
