"""Texts are embedded with the prompt of the model that a request names."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from sluicegate.wire.protocol import EmbedParameters, Failed, Task
from testing.model_repository import id_of, write_encoder
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
PROMPTS = {"query": "good ", "document": "", "other": "bad card "}


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    write_encoder(tmp_path, real=True, prompt="money ", prompts=PROMPTS)
    write_encoder(tmp_path, "plain", real=True)
    async with running_backend(tmp_path) as running:
        yield running


async def embed(
    backend: Backend, item: Any, *, model: str = "tiny", prompt_name: str | UnsetType = UNSET
) -> Any:
    parameters = EmbedParameters(prompt_name=prompt_name)
    return (await backend.answer(model, Task.EMBED, item, parameters=parameters))["embedding"]


@pytest.mark.parametrize("name", PROMPTS)
@pytest.mark.parametrize("item", ["film", (id_of("film"),)])
async def test_a_named_prompt_replaces_the_default_prompt(
    backend: Backend, name: str, item: Any
) -> None:
    expected = await embed(backend, f"{PROMPTS[name]}film", model="plain")

    assert await embed(backend, item, prompt_name=name) == pytest.approx(expected, abs=1e-6)


async def test_without_a_name_the_default_prompt_is_used(backend: Backend) -> None:
    expected = await embed(backend, "money film", model="plain")

    assert await embed(backend, "film") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("model", "named"), [("tiny", "`other`"), ("plain", "`prompt_name`")])
async def test_a_prompt_that_the_model_lacks_is_refused(
    backend: Backend, model: str, named: str
) -> None:
    parameters = EmbedParameters(prompt_name="none")
    (outcome,) = await backend.ask(model, Task.EMBED, ["film"], parameters=parameters)

    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_prompt"
    assert named in outcome.detail
