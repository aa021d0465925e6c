"""Tests `sluicegate up --models`: the user's models are served and not changed."""

import os
import shutil
from pathlib import Path

import pytest

from testing.system import System

pytestmark = pytest.mark.e2e


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file but hidden ones, which backends measured and prepared."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    names = {str(path.relative_to(folder)): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if "/." not in name}


def test_a_model_of_the_users_wins_over_the_demo_model_of_its_name(
    demo_models: Path, light_models: Path, tmp_path: Path
) -> None:
    """Its folder is as it was; the demo models lie in the data directory, served beside it."""
    own = tmp_path / "own"
    for name in ("minilm", "sentiment"):
        shutil.copytree(light_models / name / "1", own / name / "1")
    manifest = own / "sentiment" / "1" / "model.yaml"
    manifest.write_text(manifest.read_text().replace("negative", "bad").replace("positive", "fine"))
    before = contents(own)
    shutil.copytree(demo_models, tmp_path / "data" / "models", copy_function=os.link)

    with System(tmp_path / "data", models=own, arguments=("--demo-models",)) as system:
        output = system.output()
        with system.client() as client:
            body = {"model": "sentiment", "input": "a joy to watch"}
            answer = client.post("/v1/classify", json=body).json()
            served = {model["name"] for model in client.get("/v1/models").json()["data"]}

    assert {label["label"] for label in answer["results"][0]["labels"]} == {"bad", "fine"}
    assert "topics" in served
    assert contents(own) == before, sorted(contents(own))
    assert f"`sentiment` is served from {own}" in output
