"""One import of several LoRA adapters answers like an import of each one merged."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray

from sluicegate.backends.cli import main
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs import weight_file
from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from sluicegate.wire.protocol import EmbedParameters, Failed, RerankParameters, Task
from testing.weight_files import write_safetensors
from tests.parity.checkpoints import Checkpoint, Family, write_checkpoint
from tests.parity.library_fixtures import unpack
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
TEXTS = ["Paris is big", "a", "The Café in São Paulo  was   closed.", "tabs\tand\nlines " * 5]
NAMES = ["one", "two", "three"]
TOLERANCE = 1e-5
# A graph of toy size is no faster in another precision, and its random vectors move easily.
LOOSE = ("--max-flips", "100", "--max-loss", "100", "--min-cosine", "-1", "--min-speedup", "0")


def run(folder: Path, models: Path, name: str, *options: object) -> Result:
    given = ["import", folder, "--models", models, "--name", name, *options]
    return CliRunner().invoke(main, ["models", *map(str, given)])


def adapter(folder: Path, base: Path, *, seed: int, only: str = "", **config: Any) -> Path:
    """Write an adapter of all layers and tables of an encoder; every second has another rank.

    It adapts `only` modules with this in their name.
    """
    generator, tensors = np.random.default_rng(seed), {}
    for place, (name, weight) in enumerate(read_safetensors(base / "model.safetensors").items()):
        if weight.ndim != 2 or "bias" in name or only not in name:
            continue
        rank, module = 2 + (place + seed) % 2, name.removesuffix(".weight")
        is_table = "embeddings" in name and "dense" not in name and "projection" not in name
        rows, columns = weight.shape[::-1] if is_table else weight.shape
        for part, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            values = generator.normal(size=shape) / 8
            end = f"lora_embedding_{part}" if is_table else f"lora_{part}.weight"
            tensors[f"base_model.model.{module}.{end}"] = values
    folder.mkdir()
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    fields = {"peft_type": "LORA", "task_type": "FEATURE_EXTRACTION", "lora_alpha": 3 + seed}
    (folder / "adapter_config.json").write_text(json.dumps({**fields, **config}))
    return folder


def import_all(base: Path, root: Path) -> Path:
    """Import a base with three adapters, each of them merged, and the base alone."""
    models, options = root / "models", []
    for seed, name in enumerate(NAMES):
        folder = adapter(root / name, base, seed=seed)
        options += ["--adapter", f"{name}={folder}"]
        assert run(folder, models, name, "--base", base).exit_code == 0
    assert run(base, models, "none").exit_code == 0
    result = run(base, models, "shared", *options)
    assert result.exit_code == 0, result.output
    assert "requests choose an adapter: one, two, three" in result.output
    return models


async def vectors(backend: Backend, model: str, name: str | None = None) -> NDArray[np.float64]:
    given = EmbedParameters() if name is None else EmbedParameters(prompt_name=name)
    found = [backend.answer(model, Task.EMBED, text, parameters=given) for text in TEXTS]
    return np.array([answer["embedding"] for answer in await asyncio.gather(*found)])


async def check_alike(models: Path, names: Sequence[str], *, shared: str = "shared") -> None:
    async with running_backend(models, threads=1) as backend:
        # The rows of all adapters wait together, so they share batches.
        asked = [vectors(backend, shared, None if name == "none" else name) for name in names]
        mixed = await asyncio.gather(*asked)
        apart = [await vectors(backend, name) for name in names]
    for one, other in zip(mixed, apart, strict=True):
        assert np.abs(one - other).max() <= TOLERANCE
    assert np.abs(apart[0] - apart[1]).max() > 100 * TOLERANCE


@pytest.mark.parametrize("family", ["distilbert", "roberta", "albert", "modernbert"])
async def test_rows_of_a_batch_choose_their_adapters(tmp_path: Path, family: Family) -> None:
    base = write_checkpoint(Checkpoint(family=family, purpose="embed"), tmp_path / "base")

    models = await asyncio.to_thread(import_all, base, tmp_path)

    await check_alike(models, ["none", *NAMES])


def test_the_graph_for_compilers_computes_the_same(tmp_path: Path) -> None:
    base = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "base")
    models = import_all(base, tmp_path)
    ids = np.arange(5, 29, dtype=np.int32).reshape(4, 6)
    mask = np.array([[1] * 6, [1] * 3 + [0] * 3, [1] * 6, [1] * 2 + [0] * 4], dtype=np.int32)
    types = np.arange(4, dtype=np.int32)[:, None] * 2 * mask
    given = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types}

    found = [
        open_session(models / "shared" / "1" / file, DeviceOptions(provider="cpu")).run(
            ["pooled"], given
        )[0]
        for file in ("model.onnx", "model.any-plain.onnx")
    ]

    assert np.abs(found[0] - found[1]).max() <= TOLERANCE


@pytest.mark.parametrize("most_inside", [0, weight_file.MOST_INSIDE])
async def test_merged_adapters_share_a_file_of_the_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_inside: int
) -> None:
    monkeypatch.setattr(weight_file, "MOST_INSIDE", most_inside)
    base = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "base")
    models, options, files = tmp_path / "models", list[object](), []
    for seed, name in enumerate(NAMES):
        folder = adapter(tmp_path / name, base, seed=seed, only="query")
        options += ["--adapter", f"{name}={folder}"]

        await asyncio.to_thread(run, folder, models, name, "--base", base)
        files.append(models / name / "1" / weight_file.NAME)

    await asyncio.to_thread(run, base, models, "shared", *options)
    assert len({path.stat().st_ino for path in files}) == 1
    assert files[0].stat().st_size > files[0].with_name("model.onnx").stat().st_size
    assert files[0].with_name(weight_file.CHANGED).is_file() is (most_inside == 0)
    packed = [{p.name: p.stat().st_ino for p in f.parent.glob(".prepacked/*/*")} for f in files]
    assert set(packed[0].items()) & set(packed[1].items()) & set(packed[2].items())
    await check_alike(models, NAMES)


def make_variant(base: Path, root: Path, precision: str) -> Result:
    """Import a merged adapter, and make a variant of it."""
    folder = adapter(root / "one", base, seed=1, only="query")
    assert run(folder, root / "m", "own", "--base", base).exit_code == 0
    texts, judge = root / "texts.txt", root / "judge.txt"
    texts.write_text("\n".join(f"{text} {number}" for text in TEXTS for number in range(20)))
    judge.write_text("\n".join(f"{number} {text}" for text in TEXTS for number in range(20)))
    given = ["--models", root / "m", "--precision", precision]
    given += ["--calibrate", texts, "--judge", judge]
    return CliRunner().invoke(main, ["models", "tune", "own", *map(str, given), *LOOSE])


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_variant_of_a_merged_adapter_has_all_weights(
    base: Path, tmp_path: Path, precision: str
) -> None:
    result = make_variant(base, tmp_path, precision)

    assert result.exit_code == 0, result.output
    assert not list((tmp_path / "m" / "own" / "2").glob("*.weights"))


def test_a_graph_that_is_too_large_for_fp16_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "MOST_BYTES", 0)

    result = make_variant(base, tmp_path, "fp16")

    assert result.exit_code == 2
    assert "is too large for a variant in fp16" in result.output


async def test_the_adapters_of_jina_are_chosen_by_a_request(tmp_path: Path) -> None:
    folder = unpack("jina_embeddings_v3-00", tmp_path)
    models = tmp_path / "models"
    names = ["retrieval.query", "separation", "text-matching"]
    (folder / "model.yaml").unlink()
    for name in ("none", *names):
        await asyncio.to_thread(run, folder, models, name, "--adapter", name)

    result = await asyncio.to_thread(run, folder, models, "shared")

    assert result.exit_code == 0, result.output
    await check_alike(models, ["none", *names])


async def test_a_query_is_ranked_by_the_adapters_for_retrieval(tmp_path: Path) -> None:
    base = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "base")
    models, asked = tmp_path / "models", {"query": "retrieval.query", "text": "retrieval.passage"}
    options: list[object] = []
    for seed, name in enumerate(asked.values()):
        options += ["--adapter", f"{name}={adapter(tmp_path / name, base, seed=seed)}"]
    await asyncio.to_thread(run, base, models, "shared", *options)

    async with running_backend(models, threads=1) as backend:
        query = (await vectors(backend, "shared", asked["query"]))[0]
        text = (await vectors(backend, "shared", asked["text"]))[1]
        parameters = RerankParameters(query=TEXTS[0])
        ranked = await backend.answer("shared", Task.RERANK, TEXTS[1], parameters=parameters)

    assert abs(ranked["score"] - query @ text) <= TOLERANCE


async def test_an_unknown_adapter_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    base = write_checkpoint(Checkpoint(family="bert", purpose="embed"), tmp_path / "base")
    one = adapter(tmp_path / "one", base, seed=1)
    await asyncio.to_thread(run, base, tmp_path / "models", "own", "--adapter", f"one={one}")

    async with running_backend(tmp_path / "models", threads=1) as backend:
        given = EmbedParameters(prompt_name="two")
        (failed,) = await backend.ask("own", Task.EMBED, ["a"], parameters=given)

    assert isinstance(failed, Failed)
    assert "name one of `one`" in failed.detail


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shared") / "base"
    return write_checkpoint(Checkpoint(family="bert", purpose="embed"), folder)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"task_type": "SEQ_CLS"}, "a model with a head cannot choose"),
        ({"use_dora": True}, "`use_dora` is not supported"),
    ],
)
def test_an_adapter_that_shares_no_graph_is_refused(
    base: Path, tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    folder = adapter(tmp_path / "one", base, seed=1, **config)

    result = run(base, tmp_path / "m", "own", "--adapter", f"one={folder}")

    assert result.exit_code == 2
    assert says in result.output


def test_an_adapter_with_another_tokenizer_is_refused(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "one", base, seed=1)
    document = json.loads((base / "tokenizer.json").read_bytes())
    document["normalizer"] = None
    (folder / "tokenizer.json").write_text(json.dumps(document))
    config = {"tokenizer_class": "TokenizersBackend"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    result = run(base, tmp_path / "m", "own", "--adapter", f"one={folder}")

    assert result.exit_code == 2
    assert "its tokenizer differs" in result.output


def test_an_adapter_that_replaces_weights_is_refused(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "one", base, seed=1)
    path = folder / "adapter_model.safetensors"
    tensors = dict(read_safetensors(path)) | {"base_model.model.embeddings.x": np.zeros(4)}
    write_safetensors(path, tensors)

    result = run(base, tmp_path / "m", "own", "--adapter", f"one={folder}")

    assert result.exit_code == 2
    assert "replaces the weight `embeddings.x`" in result.output


def test_a_family_that_mixes_positions_into_layers_is_refused(tmp_path: Path) -> None:
    own = write_checkpoint(Checkpoint(family="deberta", purpose="embed"), tmp_path / "base")
    folder = adapter(tmp_path / "one", own, seed=1)

    result = run(own, tmp_path / "m", "own", "--adapter", f"one={folder}")

    assert result.exit_code == 2
    assert "a `deberta-v2` cannot choose among adapters" in result.output


def test_a_family_that_fills_rows_is_refused(tmp_path: Path) -> None:
    own = unpack("siglip_text_model-01", tmp_path)
    folder = adapter(tmp_path / "one", own, seed=1)

    result = run(own, tmp_path / "m", "own", "--adapter", f"one={folder}")

    assert result.exit_code == 2
    assert "a `siglip_text_model` cannot choose among adapters" in result.output


@pytest.mark.parametrize("given", [["one", "two=x"], ["one", "two"], ["one="], ["=x"]])
def test_names_and_folders_of_adapters_come_in_pairs(
    base: Path, tmp_path: Path, given: list[str]
) -> None:
    options = [part for each in given for part in ("--adapter", each)]

    result = run(base, tmp_path / "m", "own", *options)

    assert result.exit_code == 2
    assert "`--adapter` must be NAME=PATH" in result.output


def test_a_folder_without_an_adapter_is_refused(base: Path, tmp_path: Path) -> None:
    other = shutil.copytree(base, tmp_path / "other")

    result = run(base, tmp_path / "m", "own", "--adapter", f"one={other}")

    assert result.exit_code == 2
    assert "the folder has no `adapter_config.json`" in result.output


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_a_model_with_adapters_gets_no_variant(base: Path, tmp_path: Path, precision: str) -> None:
    folder, models = adapter(tmp_path / "one", base, seed=1), tmp_path / "m"
    assert run(base, models, "own", "--adapter", f"one={folder}").exit_code == 0
    texts, judge = tmp_path / "texts.txt", tmp_path / "judge.txt"
    texts.write_text("\n".join(TEXTS[:2]))
    judge.write_text("\n".join(TEXTS[2:]))
    given = ["--models", models, "--precision", precision, "--calibrate", texts, "--judge", judge]

    result = CliRunner().invoke(main, ["models", "tune", "own", *map(str, given)])

    assert result.exit_code == 2
    assert "`own` has adapters" in result.output
    assert "import each adapter as a model of its own" in result.output


@pytest.mark.parametrize(
    ("chosen", "says"),
    [("", "adapters of its own (`lora_adaptations`)"), ("adapter: none", "of its own (`adapter`)")],
)
def test_a_model_with_adapters_of_its_own_takes_no_others(
    base: Path, tmp_path: Path, chosen: str, says: str
) -> None:
    folder = unpack("jina_embeddings_v3-00", tmp_path)
    (folder / "model.yaml").write_text(chosen)
    mine = adapter(tmp_path / "mine", base, seed=1)

    result = run(folder, tmp_path / "m", "own", "--adapter", f"mine={mine}")

    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("given", ["one", "one=PATH"])
def test_an_adapter_takes_no_other_adapter(base: Path, tmp_path: Path, given: str) -> None:
    one, two = (adapter(tmp_path / f"{seed}", base, seed=seed) for seed in (1, 2))
    option = given.replace("PATH", str(two))

    result = run(one, tmp_path / "m", "own", "--base", base, "--adapter", option)

    assert result.exit_code == 2
    assert "takes no `--adapter`" in result.output


async def test_texts_are_ranked_without_adapters_if_one_of_the_pair_is_missing(
    base: Path, tmp_path: Path
) -> None:
    models, folder = tmp_path / "m", adapter(tmp_path / "one", base, seed=1)
    await asyncio.to_thread(run, base, models, "own", "--adapter", f"query={folder}")

    async with running_backend(models, threads=1) as backend:
        query, text, *_ = await vectors(backend, "own")
        parameters = RerankParameters(query=TEXTS[0])
        ranked = await backend.answer("own", Task.RERANK, TEXTS[1], parameters=parameters)

    assert abs(ranked["score"] - query @ text) <= TOLERANCE


@pytest.mark.parametrize(
    ("family", "written", "says"),
    [
        ("modernbert", "adapters: [one]", "`adapters` need the input `token_type_ids`"),
        ("bert", "adapters: [one, one]", "`adapters` names an adapter twice"),
    ],
)
async def test_adapters_that_a_graph_cannot_have_are_refused(
    tmp_path: Path, family: Family, written: str, says: str
) -> None:
    own = write_checkpoint(Checkpoint(family=family, purpose="embed"), tmp_path / "base")
    await asyncio.to_thread(run, own, tmp_path / "m", "own")
    (tmp_path / "m" / "own" / "1" / "model.yaml").write_text(written)

    async with running_backend(tmp_path / "m", threads=1) as backend:
        problems = backend.repository.core.state().problems

    assert says in problems["own"]
