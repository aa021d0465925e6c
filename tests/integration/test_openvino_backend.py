"""A backend over OpenVINO answers as one over ONNX Runtime, and keeps bf16 apart from fp32."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sluicegate.wire.protocol import Task
from testing.model_repository import write_repository
from tests.support.backend_calls import running_backend
from tests.support.openvino import need_bf16_of_the_cpu, need_openvino

TEXTS = ["good film", "the card is bad", "this text is about money. is it?", "paris"]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_repository(tmp_path / "models", real=True)


def write_bf16(models: Path) -> None:
    """Write the encoder's next revision, to be computed in bf16."""
    folder = shutil.copytree(models / "tiny" / "1", models / "tiny" / "2")
    manifest = yaml.safe_load((folder / "model.yaml").read_bytes())
    (folder / "model.yaml").write_text(yaml.safe_dump(manifest | {"profile": "bf16"}))


async def vectors(models: Path, **settings: Any) -> tuple[np.ndarray[Any, Any], str]:
    """Return the vectors of all texts, and the profile that they were computed in."""
    async with running_backend(models, **settings) as backend:
        profile = backend.info("tiny").profile
        found = [
            (await backend.answer("tiny", Task.EMBED, text, profile=profile))["embedding"]
            for text in TEXTS
        ]
    return np.array(found), profile


@pytest.mark.anyio
async def test_answers_in_fp32_are_those_of_onnx_runtime(models: Path) -> None:
    need_openvino()

    expected, _ = await vectors(models)
    found, profile = await vectors(models, provider="openvino")

    assert np.abs(found - expected).max() < 1e-5
    assert profile == "fp32"


@pytest.mark.anyio
async def test_bf16_is_a_revision_of_its_own_and_near(models: Path) -> None:
    need_bf16_of_the_cpu()
    expected, _ = await vectors(models, provider="openvino")
    write_bf16(models)

    found, profile = await vectors(models, provider="openvino")

    assert profile == "bf16"
    assert not np.array_equal(found, expected)
    # Vectors are of length one.
    assert (found * expected).sum(axis=1).min() > 0.999


@pytest.mark.anyio
async def test_a_backend_without_bf16_names_the_revision_and_what_to_do(models: Path) -> None:
    write_bf16(models)

    async with running_backend(models) as backend:
        problem = backend.engine.model_set.problems["tiny"]

    assert "tiny/2/model.onnx" in problem
    assert "`SLUICEGATE_BACKEND_PROVIDER` to `openvino`" in problem
