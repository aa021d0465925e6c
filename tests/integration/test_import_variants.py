"""`models import --precision`: the gate decides on a variant of the graph."""

import asyncio
import json
from pathlib import Path

import onnx
import pytest
from click.testing import Result
from onnxruntime.transformers.float16 import (  # type: ignore[import-untyped]
    convert_float_to_float16,
)

from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.repository.manifest import ClassifierManifest
from sluicegate.wire.protocol import Done, Task
from tests.parity.checkpoints import Checkpoint, Purpose, write_checkpoint
from tests.parity.texts import DATA, read_texts
from tests.support.backend_calls import running_backend
from tests.support.imports import run_import

# A graph of toy size is no faster in eight bits, and seeded weights are no trained ones.
_LOOSE = ("--min-speedup", 0, "--max-flips", 25)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Texts to calibrate on and others to judge by."""
    texts = [" ".join(text.split()) for text in read_texts()]
    calibrate, judge = tmp_path / "calibrate.txt", tmp_path / "judge.txt"
    calibrate.write_text("\n".join(texts[:40]), encoding="utf-8")
    judge.write_text("\n".join(texts[40:100]), encoding="utf-8")
    return calibrate, judge


def import_with(
    tmp_path: Path, files: tuple[Path, Path], *options: object, purpose: Purpose = "text"
) -> Result:
    checkpoint = Checkpoint(family="bert", purpose=purpose)
    source = write_checkpoint(checkpoint, tmp_path / "source")
    calibrate, judge = files
    given = ("--name", "mood", "--truncate", "--calibrate", calibrate, "--judge", judge)
    return run_import(source, tmp_path / "m", *given, *options)


@pytest.mark.anyio
@pytest.mark.parametrize(("precision", "purpose"), [("int8", "text"), ("fp16", "many")])
async def test_an_accepted_variant_is_the_newest_revision_and_answers(
    tmp_path: Path, files: tuple[Path, Path], precision: str, purpose: Purpose
) -> None:
    options = ("--precision", precision, *_LOOSE)
    result = await asyncio.to_thread(import_with, tmp_path, files, *options, purpose=purpose)

    assert result.exit_code == 0, result.output
    assert "Accepted" in result.output
    assert ".importing" not in result.output
    model = read_catalogue(tmp_path / "m").models["mood"]
    assert model.folder.name == "2"
    expected = json.loads((model.folder / "precision.json").read_bytes())
    assert expected["profile"] == precision
    async with running_backend(tmp_path / "m", threads=1) as backend:
        assert backend.info("mood").profile == precision
        (outcome,) = await backend.ask("mood", Task.CLASSIFY, ["A good film."], profile=precision)
    assert isinstance(outcome, Done)


def test_a_refused_variant_leaves_the_model_in_fp32(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    result = import_with(tmp_path, files, "--precision", "fp16", "--min-speedup", 1000)

    assert result.exit_code == 1
    assert "at least 1000 is required" in result.output
    assert [path.name for path in (tmp_path / "m" / "mood").iterdir()] == ["1"]


def test_a_dry_run_judges_and_writes_nothing(tmp_path: Path, files: tuple[Path, Path]) -> None:
    result = import_with(tmp_path, files, "--precision", "fp16", *_LOOSE, "--dry-run")

    assert result.exit_code == 0
    assert "of labels flip" in result.output
    assert "Accepted" in result.output
    assert list((tmp_path / "m").iterdir()) == []


@pytest.mark.parametrize(
    ("purpose", "message"),
    [
        ("embed", "of nearest neighbours change"),
        ("tokens", "of a text's tokens flip"),
        ("cross", "of first places change"),
    ],
)
def test_each_kind_is_judged_by_what_it_is_used_for(
    tmp_path: Path, files: tuple[Path, Path], purpose: Purpose, message: str
) -> None:
    result = import_with(tmp_path, files, "--precision", "int8", purpose=purpose)

    assert result.exit_code == 1
    assert message in result.output
    assert "with 60 texts" in result.output.replace("queries", "texts")
    assert [path.name for path in (tmp_path / "m" / "mood").iterdir()] == ["1"]


def test_a_precision_needs_texts_to_judge_by(tmp_path: Path) -> None:
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")

    for precision in ("fp16", "int8"):
        result = run_import(source, tmp_path / "m", "--precision", precision)

        assert result.exit_code == 2
        assert "needs `--judge`" in result.output


@pytest.mark.parametrize("keep_io_types", [True, False], ids=["in fp32", "in fp16"])
def test_a_graph_in_fp16_is_served_as_such(tmp_path: Path, keep_io_types: bool) -> None:  # noqa: FBT001
    source = write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")
    (source / "model.safetensors").unlink()
    exported = onnx.load(DATA / "bert-text-torchscript.onnx")
    half = convert_float_to_float16(exported, keep_io_types=keep_io_types, disable_shape_infer=True)
    onnx.save(half, source / "model.onnx")

    result = run_import(source, tmp_path / "m", "--precision", "fp16")

    assert result.exit_code == 0, result.output
    manifest = read_catalogue(tmp_path / "m").models["source"].manifest
    assert isinstance(manifest, ClassifierManifest)
    assert manifest.profile == "fp16"
