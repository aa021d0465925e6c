"""Where `models import` takes a model from: a folder, the hub, another family by optimum."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest

from sluicegate.backends.model_tools.importing.convert import convert
from tests.parity.checkpoints import Checkpoint, write_checkpoint
from tests.support.hub import running_hub
from tests.support.imports import import_arguments, run_import


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_checkpoint(Checkpoint(family="bert", purpose="text"), tmp_path / "source")


class RunImport(Protocol):
    def __call__(self, hub: str, name: str) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunImport:
    """Import in a process of its own: the hub's client reads its address when it is imported."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))

    def run_import(hub: str, name: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("HF_ENDPOINT", hub)
        given = import_arguments(name, tmp_path / "m")
        return subprocess.run(
            [sys.executable, "-m", "sluicegate.backends", *given],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run_import


@pytest.mark.parametrize("name", ["owner/model", "hf://owner/model@main"])
def test_a_name_is_fetched_from_the_hub_without_what_is_not_needed(
    source: Path, tmp_path: Path, run: RunImport, name: str
) -> None:
    (source / "pytorch_model.bin").write_bytes(b"a pickle")
    (source / "README.md").write_text("---\nwidget: [{text: A witty film.}]\n---\n")
    with running_hub(source) as hub:
        result = run(hub.address, name)

    assert result.returncode == 0, result.stderr
    assert (tmp_path / "m" / "model" / "1" / "model.onnx").is_file()
    assert '"A witty film.": ' in result.stdout
    assert any("/resolve/" in path and path.endswith("model.safetensors") for path in hub.asked)
    assert not any(path.endswith(".bin") for path in hub.asked)


def test_a_name_that_the_hub_does_not_know_is_refused_in_one_line(
    source: Path, run: RunImport
) -> None:
    with running_hub(source) as hub:
        result = run(hub.address, "owner/other")

    assert result.returncode == 2
    assert "`owner/other`" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(run: RunImport) -> None:
    result = run("http://127.0.0.1:9", "owner/model")

    assert result.returncode == 2
    assert "without the hub, copy the model's folder" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_what_is_neither_a_folder_nor_a_name_is_refused(source: Path, tmp_path: Path) -> None:
    missing = run_import(tmp_path / "none", tmp_path / "m")
    revision = run_import(source, tmp_path / "m", "--revision", "main")

    assert "there is no folder" in missing.output
    assert "`hf://owner/name`" in missing.output
    assert "`--revision`" in revision.output
    assert (missing.exit_code, revision.exit_code) == (2, 2)


def install_exporter(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package that stands for optimum, for one test."""
    package = folder / "optimum" / "exporters"
    package.mkdir(parents=True)
    signature = "def main_export(model_name_or_path, *, output, task, do_validation):"
    (package / "onnx.py").write_text(f"import shutil\n\n{signature}\n    {body}\n")
    monkeypatch.syspath_prepend(folder)
    for name in ("optimum", "optimum.exporters", "optimum.exporters.onnx"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def squeezebert(source: Path, tmp_path: Path) -> Path:
    """A folder of a family that is exported; beside it its graph."""
    convert(source, tmp_path / "converted")
    config = json.loads((source / "config.json").read_bytes()) | {"model_type": "squeezebert"}
    (source / "config.json").write_text(json.dumps(config))
    return source


def test_another_family_is_exported_where_optimum_is_installed(
    squeezebert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = tmp_path / "converted" / "model.onnx"
    told = "assert task == 'text-classification'"
    body = f"{told}; shutil.copyfile({str(graph)!r}, output / 'model.onnx')"
    install_exporter(tmp_path / "packages", body, monkeypatch)

    result = run_import(squeezebert, tmp_path / "m")

    assert result.exit_code == 0, result.output
    assert "made of                `squeezebert` weights, exported by optimum" in result.output
    assert (tmp_path / "m" / "source" / "1" / "model.onnx").read_bytes() == graph.read_bytes()


def test_what_optimum_cannot_export_says_why(
    squeezebert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "raise KeyError('no such architecture')"
    install_exporter(tmp_path / "packages", body, monkeypatch)

    result = run_import(squeezebert, tmp_path / "m")

    assert result.exit_code == 2
    assert "'no such architecture'" in result.output


def test_without_optimum_it_is_named_as_the_remedy(squeezebert: Path, tmp_path: Path) -> None:
    result = run_import(squeezebert, tmp_path / "m")

    assert result.exit_code == 2
    assert "`pip install optimum-onnx`" in result.output
