"""A GLiNER2 model finds entities and relations, and labels texts, by the labels of a request."""

import itertools
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.backends.pipelines.words import schema_word
from sluicegate.wire.protocol import (
    Done,
    EntitiesParameters,
    Failed,
    Parameters,
    Task,
    ZeroShotParameters,
    most_entity_windows,
)
from tests.parity.library_fixtures import unpack
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
NAME = "gliner2-03"
LABELS = ["city", "person", "a date"]
RELATIONS = ["lives in", "knows"]
WORDS = ["Paris", "naïve", "cafe\u0301", "👩‍👩‍👧", "שלום", "x-y_z", "ada@mail.org", "a\u200bb"]
LONG = " ".join(itertools.islice(itertools.cycle(WORDS), 900))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAME, tmp_path_factory.mktemp("gliner2"))


@pytest.fixture(scope="module")
def models(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("repository") / "models"
    assert import_folder(checkpoint, models) is None
    return models


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, threads=1) as running:
        yield running


async def test_the_first_text_finds_the_pattern_of_words_made(models: Path) -> None:
    """Making it takes a fifth of a second, in which a backend would answer nobody."""
    schema_word.cache_clear()

    async with running_backend(models, threads=1):
        assert schema_word.cache_info().currsize == 1


async def find(backend: Backend, text: str, **given: Any) -> list[dict[str, Any]]:
    parameters = EntitiesParameters(**{"labels": LABELS, **given})
    answer = await backend.answer(NAME, Task.ENTITIES, text, parameters=parameters)
    found: list[dict[str, Any]] = answer["entities"]
    return found


async def refusal(backend: Backend, task: Task, text: str, parameters: Parameters) -> str:
    (outcome,) = await backend.ask(NAME, task, [text], parameters=parameters)
    assert isinstance(outcome, Failed)
    return outcome.code


async def relate(backend: Backend, text: str, **given: Any) -> list[dict[str, Any]]:
    parameters = EntitiesParameters(**{"relations": RELATIONS, "threshold": 0.2, **given})
    answer = await backend.answer(NAME, Task.ENTITIES, text, parameters=parameters)
    found: list[dict[str, Any]] = answer["relations"]
    return found


def overlap(entities: list[dict[str, Any]]) -> bool:
    return any(one["end"] > other["start"] for one, other in itertools.pairwise(entities))


async def test_a_long_text_has_entities_from_its_begin_to_its_end(backend: Backend) -> None:
    found = await find(backend, LONG, labels=LABELS[:1], threshold=0.2)

    assert found[0]["start"] < 200
    assert found[-1]["end"] > len(LONG) - 200
    assert all(entity["text"] == LONG[entity["start"] : entity["end"]] for entity in found)


async def test_types_exclude_each_other_on_request(backend: Backend) -> None:
    several = await find(backend, LONG[:300], threshold=0.2)
    one = await find(backend, LONG[:300], threshold=0.2, multi_label=False)

    assert overlap(several)
    assert not overlap(one)
    for label in LABELS:
        assert not overlap([entity for entity in several if entity["label"] == label])


async def test_relations_of_a_long_text_are_found_once_from_its_begin_to_its_end(
    backend: Backend,
) -> None:
    found = await relate(backend, LONG)

    ends = [relation[side] for relation in found for side in ("head", "tail")]
    assert min(end["start"] for end in ends) < 200
    assert max(end["end"] for end in ends) > len(LONG) // 2
    assert all(end["text"] == LONG[end["start"] : end["end"]] for end in ends)
    places = [
        (each["label"], *(each[side][at] for side in ("head", "tail") for at in ("start", "end")))
        for each in found
    ]
    assert len(set(places)) == len(places)
    assert sorted(places, key=lambda place: RELATIONS.index(place[0])) == places


async def test_entities_and_relations_do_not_depend_on_each_other(backend: Backend) -> None:
    text = LONG[:300]
    asked = EntitiesParameters(labels=LABELS, relations=RELATIONS, threshold=0.2)

    both = await backend.answer(NAME, Task.ENTITIES, text, parameters=asked)

    assert both["entities"] == await find(backend, text, threshold=0.2)
    assert both["relations"] == await relate(backend, text)
    assert both["entities"]
    assert both["relations"]


async def test_heads_and_tails_exceed_the_threshold(backend: Backend) -> None:
    def least(relation: dict[str, Any]) -> float:
        score: float = min(relation["head"]["score"], relation["tail"]["score"])
        return score

    every = await relate(backend, LONG[:300])
    first, second, *_ = sorted(set(map(least, every)))
    threshold = (first + second) / 2

    some = await relate(backend, LONG[:300], threshold=threshold)

    assert some == [each for each in every if least(each) > threshold]
    assert some


async def test_descriptions_of_labels_and_relations_are_read(backend: Backend) -> None:
    text = "The Café in São Paulo was closed."
    meant = {"city": "A place where people live.", "knows": "Two people have met."}
    asked = EntitiesParameters(labels=LABELS, relations=RELATIONS, threshold=0.2)
    described = msgspec.structs.replace(asked, descriptions=meant)

    plain, other = [
        await backend.answer(NAME, Task.ENTITIES, text, parameters=each)
        for each in (asked, described)
    ]

    assert plain["entities"] != other["entities"]
    assert plain["relations"] != other["relations"]


async def test_no_text_has_more_rows_than_limits_reserve(backend: Backend) -> None:
    asked = EntitiesParameters(
        labels=LABELS,
        relations=RELATIONS,
        descriptions={"city": "very " * 40, "knows": "very " * 40},
        threshold=0.9999,
    )

    (outcome,) = await backend.ask(NAME, Task.ENTITIES, [LONG[:3000]], parameters=asked)

    assert isinstance(outcome, Done)
    info = backend.info(NAME)
    assert 2 < outcome.rows <= most_entity_windows(LONG[:3000], asked, info.row_limits)


async def test_relations_that_repeat_too_much_text_are_refused(backend: Backend) -> None:
    """A word of a text may be as long as the text, and each relation has it again."""
    many = EntitiesParameters(relations=[f"type {number}" for number in range(8)], threshold=0.0)

    assert await refusal(backend, Task.ENTITIES, "https://" + "a" * 90_000, many) == "bad_parameter"


async def test_labels_of_a_text_share_a_row(backend: Backend) -> None:
    shares = await backend.answer(
        NAME, Task.ZERO_SHOT, "Ada lives in Paris", parameters=ZeroShotParameters(labels=LABELS)
    )
    apart = await backend.answer(
        NAME,
        Task.ZERO_SHOT,
        "Ada lives in Paris",
        parameters=ZeroShotParameters(labels=LABELS, multi_label=True),
    )

    assert sum(label["score"] for label in shares["labels"]) == pytest.approx(1.0)
    order = [label["label"] for label in shares["labels"]]
    assert order == [label["label"] for label in apart["labels"]]
    assert backend.info(NAME).tasks == [Task.ENTITIES, Task.ZERO_SHOT]
    assert backend.info(NAME).max_words == 384


async def test_labels_and_texts_that_do_not_fit_are_refused(backend: Backend) -> None:
    many = [f"label {number}" for number in range(65)]
    twice = ZeroShotParameters(labels=["a", "a"])

    assert await refusal(backend, Task.ZERO_SHOT, "a", twice) == "duplicate_labels"
    too_many = ZeroShotParameters(labels=many)
    assert await refusal(backend, Task.ZERO_SHOT, "a", too_many) == "too_many_labels"
    given = ZeroShotParameters(labels=LABELS)
    assert await refusal(backend, Task.ZERO_SHOT, LONG, given) == "input_too_long"
    assert await refusal(backend, Task.ZERO_SHOT, " \n", given) == "empty_input"
    assert await refusal(backend, Task.ENTITIES, "a", EntitiesParameters()) == "no_labels"


@pytest.mark.parametrize(
    ("relations", "code"),
    [
        ([], "no_labels"),
        (["knows", "knows"], "duplicate_labels"),
        ([f"relation {number}" for number in range(33)], "too_many_labels"),
    ],
)
async def test_relations_that_a_model_cannot_read_are_refused(
    backend: Backend, relations: list[str], code: str
) -> None:
    asked = EntitiesParameters(relations=relations)

    assert await refusal(backend, Task.ENTITIES, "a text", asked) == code


@pytest.mark.parametrize(
    ("descriptions", "code"),
    [
        ({"town": "A place."}, "bad_parameter"),
        ({"city": "y" * 90_000}, "input_too_long"),
        ({"city": "place " * 900}, "input_too_long"),
    ],
)
async def test_descriptions_that_a_model_cannot_read_are_refused(
    backend: Backend, descriptions: dict[str, str], code: str
) -> None:
    asked = EntitiesParameters(labels=LABELS, descriptions=descriptions)

    assert await refusal(backend, Task.ENTITIES, "a text", asked) == code


def configured(**fields: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return edit


def without_encoder(folder: Path) -> None:
    (folder / "encoder_config" / "config.json").unlink()


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "boundaries": (configured(architecture="boundary"), "`architecture` is `boundary`"),
    "means of tokens": (configured(token_pooling="mean"), "`token_pooling` is `mean`"),
    "another layer": (configured(counting_layer="none"), "`counting_layer` is `none`"),
    "another marker": (configured(span_head={"span_mode": "x"}), "`span_mode` is `x`"),
    "spans of any width": (configured(span_head={"max_width": 10**9}), "`int` <= 128"),
    "other weights": (configured(counting_layer="count_lstm"), "count_embed.projector.0.weight"),
    "no encoder": (without_encoder, "encoder_config/config.json"),
}


@pytest.mark.parametrize(("edit", "says"), REFUSED.values(), ids=REFUSED)
def test_a_checkpoint_that_cannot_be_served_is_refused_by_name(
    checkpoint: Path, tmp_path: Path, edit: Callable[[Path], None], says: str
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "gliner2")
    edit(folder)

    reason = import_folder(folder, tmp_path / "models")

    assert reason is not None
    assert says in reason
