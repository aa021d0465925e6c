"""The algorithm in docs/algorithms.md runs as it is written, and so does its test."""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from sluicegate.backends.algorithms.recipes import CUSTOM, RECIPES
from sluicegate.wire.protocol import InferParameters, Task
from tests.docs.tables import first_cells, page
from tests.support.backend_calls import running_backend

PAGE = page("docs/algorithms.md")
BLOCKS = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL))


def test_the_example_s_own_test_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("triage.py", "test_triage.py"):
        (tmp_path / name).write_text(BLOCKS[name])
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("test_triage", tmp_path / "test_triage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test: Callable[[], None] = module.test_angry_messages_are_urgent

    test()


@pytest.mark.anyio
async def test_the_example_is_served(tmp_path: Path, demo_models: Path) -> None:
    models = tmp_path / "models"
    folder = models / "triage" / "1"
    folder.mkdir(parents=True)
    for name in ("minilm", "sentiment", "banking-intents"):
        (models / name).symlink_to(demo_models / name)
    for name in ("triage.py", "model.yaml"):
        (folder / name).write_text(BLOCKS[name])
    request = json.loads(BLOCKS["request"])

    async with running_backend(models) as backend:
        parameters = InferParameters(parameters=request["parameters"])
        answer = await backend.answer(
            "triage", Task.INFER, request["inputs"][0], parameters=parameters
        )

    assert answer == {"queue": "transaction_charged_twice", "urgent": True}


def test_every_algorithm_is_documented() -> None:
    assert {*RECIPES, CUSTOM} - {"reviewer"} <= first_cells(PAGE)


def test_every_model_yaml_on_the_page_is_one() -> None:
    blocks = re.findall(r"^```yaml.*?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)

    assert blocks
    assert all(yaml.safe_load(block)["algorithm"] in {*RECIPES, CUSTOM} for block in blocks)
