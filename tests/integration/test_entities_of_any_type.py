"""A GLiNER model finds entities of the types that a request names, in long texts, too."""

import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.tuning.tuned_model import find_tuned_model
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.protocol import Done, EntitiesParameters, Failed, Task
from testing.model_repository import DIMENSIONS, write_encoder, write_head
from tests.parity.library_fixtures import unpack
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
NAME = "gliner-00"
WORDS = ["paris", "naïve", "cafe\u0301", "👩‍👩‍👧", "שלום", "ab\u0308c", "x-y_z", "ﬁsh", "a\u200bb"]
LONG = " ".join(itertools.islice(itertools.cycle(WORDS), 900))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAME, tmp_path_factory.mktemp("gliner"))


@pytest.fixture(scope="module")
def models(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("repository") / "models"
    assert import_folder(checkpoint, models) is None
    return models


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, threads=1) as running:
        yield running


async def find(backend: Backend, text: str, **given: Any) -> list[dict[str, Any]]:
    parameters = EntitiesParameters(**{"labels": ["city", "person"], **given})
    answer = await backend.answer(NAME, Task.ENTITIES, text, parameters=parameters)
    found: list[dict[str, Any]] = answer["entities"]
    return found


async def failure(backend: Backend, model: str, text: str, **given: Any) -> Failed:
    parameters = EntitiesParameters(**given)
    (outcome,) = await backend.ask(model, Task.ENTITIES, [text], parameters=parameters)
    assert isinstance(outcome, Failed)
    return outcome


async def refusal(backend: Backend, model: str, text: str, **given: Any) -> str:
    return (await failure(backend, model, text, **given)).code


async def test_a_long_text_has_entities_from_its_begin_to_its_end(backend: Backend) -> None:
    found = await find(backend, LONG)

    assert found[0]["start"] < 200
    assert found[-1]["end"] > len(LONG) - 200
    assert all(entity["text"] == LONG[entity["start"] : entity["end"]] for entity in found)
    assert all(first["end"] <= second["start"] for first, second in itertools.pairwise(found))


async def test_nested_entities_are_found_on_request(backend: Backend) -> None:
    flat = await find(backend, LONG[:400])
    nested = await find(backend, LONG[:400], flat=False)

    pairs = itertools.pairwise(nested)
    assert len(nested) > len(flat)
    assert any(second["start"] < first["end"] for first, second in pairs)


async def test_an_entity_has_several_types_on_request(backend: Backend) -> None:
    one = await find(backend, LONG[:400], threshold=0.1)
    several = await find(backend, LONG[:400], threshold=0.1, multi_label=True)

    assert len({(entity["start"], entity["end"]) for entity in one}) == len(one)
    assert len({(entity["start"], entity["end"]) for entity in several}) < len(several)


async def test_a_word_longer_than_the_model_reads_is_truncated(backend: Backend) -> None:
    parameters = EntitiesParameters(labels=["city"])
    (outcome,) = await backend.ask(
        NAME, Task.ENTITIES, ["paris " + "qj" * 4000], parameters=parameters
    )

    assert isinstance(outcome, Done)
    assert outcome.truncated_from > 768


async def test_a_request_needs_labels_that_the_model_can_take(backend: Backend) -> None:
    many = [f"label {number}" for number in range(65)]
    long = ["word " * 100] * 1

    assert await refusal(backend, NAME, "a text") == "no_labels"
    assert await refusal(backend, NAME, "a text", labels=[]) == "no_labels"
    assert await refusal(backend, NAME, "a text", labels=["a", "a"]) == "duplicate_labels"
    assert await refusal(backend, NAME, "a text", labels=many) == "too_many_labels"
    assert await refusal(backend, NAME, "a text", labels=["word " * 900]) == "input_too_long"
    assert await refusal(backend, NAME, LONG * 4, labels=long, threshold=0.0) == "bad_parameter"
    assert await refusal(backend, NAME, " ", labels=["city"]) == "empty_input"


async def test_texts_and_labels_that_cannot_fit_are_refused_unread(backend: Backend) -> None:
    words = await failure(backend, NAME, "!" * 200_000, labels=["city"])
    characters = await failure(backend, NAME, "a text", labels=["city", "y" * 90_000])

    assert "the text has more than" in words.detail
    assert "the labels have 90004 characters" in characters.detail


async def test_a_model_refuses_relations_and_descriptions_that_it_does_not_read(
    backend: Backend,
) -> None:
    described = {"labels": ["city"], "descriptions": {"city": "A place."}}

    related = await refusal(backend, NAME, "a text", labels=["city"], relations=["lives in"])
    meant = await failure(backend, NAME, "a text", **described)

    assert related == "relations_not_supported"
    assert "reads no `descriptions`" in meant.detail


async def test_a_model_of_fixed_types_refuses_labels(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_encoder(models, "plain-encoder", tasks=[])
    write_head(
        models,
        "plain",
        ["O", "B-PER", "I-PER"],
        encoder="plain-encoder",
        task="entities",
        output="tokens",
    )
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        for asked in ({"labels": ["city"]}, {"relations": ["lives in"]}):
            assert await refusal(backend, "plain", "a text", **asked) == "labels_not_supported"


def test_a_variant_that_cannot_be_judged_is_refused(models: Path) -> None:
    with pytest.raises(StartProblem, match="serve it in fp32"):
        find_tuned_model(read_catalogue(models), NAME, BackendSettings(models=models))


def without(*names: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return edit


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def configured(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "gliner_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return edit


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle": (pickled, "safe_serialization=True"),
    "no encoder": (configured(encoder_config=None), "`encoder_config`"),
    "a decoder": (configured(encoder_config={"model_type": "qwen3"}), "`qwen3`"),
    "spans of any width": (configured(max_width=10**9), "`int` <= 128"),
    "another span mode": (configured(span_mode="token_level"), "`span_mode` is `token_level`"),
    "means of tokens": (configured(subtoken_pooling="mean"), "`first` or `last`"),
    "another splitter": (configured(words_splitter_type="spacy"), "`words_splitter_type`"),
    "a bi-encoder": (configured(labels_encoder="bert"), "`labels_encoder`"),
    "another marker": (configured(class_token_index=7), "`class_token_index`"),
    "more layers": (configured(num_rnn_layers=3), "rnn.lstm.weight_ih_l1"),
    "no tokenizer": (without("tokenizer.json"), "`tokenizer.json`"),
}


@pytest.mark.parametrize(("edit", "says"), REFUSED.values(), ids=REFUSED)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, edit: Callable[[Path], None], says: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "gliner")
    edit(folder)

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert "GLiNER" in reason or "tokenizer" in reason
    assert says in reason


def test_a_checkpoint_larger_than_an_onnx_file_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.backends.model_tools.importing.gliner.MOST_BYTES", 10)

    reason = import_folder(checkpoint, tmp_path / "models")

    assert reason is not None
    assert "at most 10 are supported" in reason
