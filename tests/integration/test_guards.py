"""A guard's detectors look at all of a text, over real heads of one encoder."""

import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sluicegate.wire.guards import AnyDetector
from sluicegate.wire.protocol import (
    MAX_ENTITIES,
    MAX_WINDOWS,
    Done,
    EntitiesParameters,
    Failed,
    GuardParameters,
    Task,
)
from testing.model_repository import DIMENSIONS, write_head, write_model, write_repository
from tests.parity.library_fixtures import unpack
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor, PacedExecutor
from tests.support.gate import Gate

pytestmark = pytest.mark.anyio
_MODELS = ["mood", "intents", "names", "long-mood", "quick-mood", "tiny", "tree"]
_TREE = {"mood": ["good", "bad"], "money": ["card", "loan"]}
_NEVER = {"negative": 1.0}


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[Backend]:
    models = write_repository(tmp_path / "models")
    manifest = {"kind": "algorithm", "algorithm": "guard", "uses": _MODELS, "tasks": ["guard"]}
    write_model(models, "detectors", manifest)
    long = {"algorithm": "long-document", "options": {"overlap": 4}, "uses": ["mood"]}
    write_model(models, "long-mood", {"kind": "algorithm", "tasks": ["classify"]} | long)
    write_head(models, "mood-2", ["positive", "negative"])
    quick = {"algorithm": "cascade", "uses": ["mood-2", "mood"], "options": {"threshold": 1}}
    write_model(models, "quick-mood", {"kind": "algorithm", "tasks": ["classify"]} | quick)
    write_model(
        models,
        "long-topics",
        {"kind": "algorithm", "tasks": ["zero-shot"]} | long | {"uses": ["topics"]},
    )
    tree = {"algorithm": "label-tree", "uses": ["long-topics"], "options": {"tree": _TREE}}
    write_model(models, "tree", {"kind": "algorithm", "tasks": ["classify"]} | tree)
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


def declared(*detectors: dict[str, Any], **more: Any) -> GuardParameters:
    """Return the parameters of a guard as a document declares it."""
    named = [{"name": f"d{number}"} | detector for number, detector in enumerate(detectors)]
    return GuardParameters(
        detectors=msgspec.convert(named, tuple[AnyDetector, ...]),
        **more,
    )


async def test_a_late_guard_tells_when_to_retry(tmp_path: Path) -> None:
    """So the gateway can tell an overload from a slow text."""
    models, gate = write_repository(tmp_path / "models"), Gate()
    manifest = {"kind": "algorithm", "algorithm": "guard", "uses": ["mood"], "tasks": ["guard"]}
    write_model(models, "detectors", manifest)
    executor = PacedExecutor(gate, dimensions=DIMENSIONS)
    async with running_backend(models, executor) as paced:
        (late,) = await paced.ask(
            "detectors", Task.GUARD, ["bad"], parameters=declared(mood()), remaining=0.2
        )
        gate.open()

    assert isinstance(late, Failed)
    assert late.code == "deadline_exceeded"
    assert late.retry_after is not None


async def judge(backend: Backend, text: str, *detectors: dict[str, Any], **more: Any) -> Any:
    return await backend.answer(
        "detectors", Task.GUARD, text, parameters=declared(*detectors, **more)
    )


async def refusal(backend: Backend, text: str, *detectors: dict[str, Any], **more: Any) -> Failed:
    parameters = declared(*detectors, **more)
    (outcome,) = await backend.ask("detectors", Task.GUARD, [text], parameters=parameters)
    assert isinstance(outcome, Failed), outcome
    return outcome


def mood(**changes: Any) -> dict[str, Any]:
    return {"kind": "classifier", "model": "mood", "labels": {"negative": 0.0}} | changes


async def test_a_classifier_finds_its_labels_above_their_thresholds(backend: Backend) -> None:
    ranked = await backend.answer("mood", Task.CLASSIFY, "the bad film")
    score = next(one["score"] for one in ranked["labels"] if one["label"] == "negative")

    found = await judge(backend, "the bad film", mood(labels={"negative": score - 1e-5}))
    none = await judge(backend, "the bad film", mood(labels={"negative": score + 1e-5}))

    (finding,) = found["findings"]
    assert finding["score"] == pytest.approx(score, abs=1e-6)
    assert (finding["start"], finding["end"]) == (0, len("the bad film"))
    assert (finding["model"], len(finding["revision"])) == ("mood", 12)
    assert (none["verdict"], none["findings"]) == ("allow", [])
    for one in (found, none):
        # Not rounded: what decided is compared with other thresholds.
        best = one["scores"]["d0"]["best"]["negative"]
        assert best == float(np.float32(best))
        assert best == pytest.approx(finding["score"], abs=1e-6)


async def test_a_text_without_an_expected_label_is_found(backend: Backend) -> None:
    ranked = (await backend.answer("intents", Task.CLASSIFY, "money"))["labels"]
    best, worst = ranked[0], ranked[-1]
    detector = {"kind": "classifier", "model": "intents", "action": "flag"}

    found = await judge(backend, "money", detector | {"expected": {worst["label"]: 0.99}})
    none = await judge(backend, "money", detector | {"expected": {best["label"]: 0.0}})

    assert [one["label"] for one in found["findings"]] == [best["label"]]
    assert (found["verdict"], none["verdict"]) == ("flag", "allow")


def similar(**changes: Any) -> dict[str, Any]:
    examples = {"praise": ["good film", "the good film"], "costs": ["money"]}
    declared = {"kind": "examples", "model": "tiny", "examples": examples, "threshold": 0.999}
    return declared | changes


async def test_a_text_that_equals_an_example_is_found(backend: Backend) -> None:
    found = await judge(backend, "Money", similar())
    none = await judge(backend, "is the paris", similar())

    (finding,) = found["findings"]
    assert finding["label"] == "costs"
    assert finding["score"] == pytest.approx(1.0, abs=1e-6)
    assert finding["score"] <= 1
    assert (finding["start"], finding["end"], finding["model"]) == (0, len("money"), "tiny")
    assert none["findings"] == []


async def test_a_window_gets_the_label_of_its_nearest_example(backend: Backend) -> None:
    text = "the bad film"
    examples = {"praise": ["good film", "the good film"], "costs": ["money", "money is bad"]}
    texts = [text, *examples["praise"], *examples["costs"]]
    answers = [await backend.answer("tiny", Task.EMBED, each) for each in texts]
    vectors = np.array([one["embedding"] for one in answers])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors[1:] @ vectors[0]
    best = float(cosines.max())

    found = await judge(backend, text, similar(examples=examples, threshold=best - 1e-5))
    none = await judge(backend, text, similar(examples=examples, threshold=best + 1e-5))

    (finding,) = found["findings"]
    assert finding["label"] == ("praise", "praise", "costs", "costs")[cosines.argmax()]
    assert finding["score"] == pytest.approx(best, abs=1e-5)
    assert none["findings"] == []


async def test_a_window_of_a_long_text_is_similar_to_an_example(backend: Backend) -> None:
    text = " ".join(["is"] * 30 + ["money"] * 30 + ["is"] * 10)
    examples = {"costs": [" ".join(["money"] * 30)]}

    answer = await judge(backend, text, similar(examples=examples), overlap=0)

    (finding,) = answer["findings"]
    assert text[finding["start"] : finding["end"]] == examples["costs"][0]


async def test_rows_of_examples_are_not_charged(backend: Backend) -> None:
    parameters = declared(similar(), similar(threshold=0.5))

    outcomes = [
        await backend.ask("detectors", Task.GUARD, ["good"], parameters=parameters)
        for _ in range(2)
    ]

    assert [(one.rows, one.known) for (one,) in outcomes if isinstance(one, Done)] == [
        (1, 1),
        (0, 2),
    ]


async def test_detectors_over_one_encoder_share_its_rows(backend: Backend) -> None:
    intents = mood(model="intents", labels={"card": 0.5})
    parameters = declared(mood(), intents, mood(labels=_NEVER))

    (outcome,) = await backend.ask("detectors", Task.GUARD, ["good money"], parameters=parameters)

    assert isinstance(outcome, Done)
    assert (outcome.rows, outcome.known) == (1, 2)


async def test_every_window_of_a_long_text_is_looked_at(backend: Backend) -> None:
    """A window has 30 tokens, and the windows share 4 of them."""
    windows = [(0, 30), (26, 56), (52, 82), (78, 100)]
    words = ["good"] * 100
    words[90] = "bad"
    text = " ".join(words)

    found = await judge(backend, text, mood(), overlap=4)

    spans = [(one["start"], one["end"]) for one in found["findings"]]
    assert [text[start:end] for start, end in spans] == [
        " ".join(words[start:end]) for start, end in windows
    ]
    first, *same, last = [one["score"] for one in found["findings"]]
    assert same == [first] * 2
    assert last != first


@pytest.mark.parametrize("model", ["long-mood", "quick-mood"])
async def test_windows_of_a_long_text_are_looked_at_one_by_one(
    backend: Backend, model: str
) -> None:
    text = " ".join(["good"] * 90 + ["bad"] * 10)

    plain = await judge(backend, text, mood(), overlap=4)
    long = await judge(backend, text, mood(model=model), overlap=4)

    assert len(plain["findings"]) == 4
    kept = ("label", "score", "start", "end")
    assert [[one[name] for name in kept] for one in long["findings"]] == [
        [one[name] for name in kept] for one in plain["findings"]
    ]


async def test_a_tree_of_labels_is_walked_in_each_window(backend: Backend) -> None:
    words = ["good"] * 90 + ["bad"] * 10
    labels = dict.fromkeys(["good", "bad", "card", "loan"], 0.001)
    detector = mood(model="tree", labels=labels)

    found = await judge(backend, " ".join(words), detector, overlap=4)
    last = await judge(backend, " ".join(words[78:]), detector, overlap=4)

    starts = [one["start"] for one in found["findings"]]
    assert starts == [len(" ".join(words[:start])) + (start > 0) for start in (0, 26, 52, 78)]
    assert found["findings"][-1]["label"] == last["findings"][0]["label"]
    assert found["findings"][-1]["score"] == last["findings"][0]["score"]


async def test_a_text_that_is_too_long_to_look_at_is_refused(backend: Backend) -> None:
    text = "good " * (30 * MAX_WINDOWS + 30)

    refused = await refusal(backend, text, mood())

    assert (refused.status, refused.code) == (422, "input_too_long")


@pytest.mark.parametrize(
    ("more", "other"),
    [
        ("good " * (30 * MAX_WINDOWS + 30), mood(action="redact")),
        ("x " * (MAX_ENTITIES + 1), {"kind": "words", "words": ["x"], "action": "redact"}),
        ("", {"kind": "pattern", "pattern": "(a"}),
    ],
)
async def test_a_found_block_is_the_verdict_even_if_another_detector_fails(
    backend: Backend, more: str, other: dict[str, Any]
) -> None:
    blocked = {"kind": "words", "words": ["film"]}

    answer = await judge(backend, f"{more}a film", other, blocked)
    refused = await refusal(backend, f"{more}a film", other, blocked, allow=("Film",))

    assert (answer["verdict"], len(answer["findings"])) == ("block", 1)
    assert answer["error"] == {"code": refused.code, "detail": refused.detail}
    assert refused.code in ("input_too_long", "too_many_findings", "guard_invalid")


@pytest.mark.parametrize(
    ("actions", "verdict"),
    [
        ((), "allow"),
        (("flag",), "flag"),
        (("redact", "flag"), "redact"),
        (("flag", "block", "redact"), "block"),
    ],
)
async def test_the_strongest_action_is_the_verdict(
    backend: Backend, actions: Sequence[str], verdict: str
) -> None:
    others = {"kind": "words", "words": ["absent"]}
    found = [{"kind": "words", "words": ["film"], "action": action} for action in actions]

    answer = await judge(backend, "a film", others, *found)

    assert answer["verdict"] == verdict
    assert len(answer["findings"]) == len(actions)


async def test_an_allowed_span_is_no_finding(backend: Backend) -> None:
    emails = {"kind": "formats", "formats": ["email"]}

    answer = await judge(backend, "to Us@x.org and you@x.org", emails, allow=("us@X.org",))

    assert [(one["start"], one["end"]) for one in answer["findings"]] == [(16, 25)]


async def test_hidden_characters_hide_nothing_and_spans_are_those_of_the_text(
    backend: Backend,
) -> None:
    text = "a f\u200bi\u00adlm"
    plain, hidden = "the bad film", "the\u200b bad ﬁlm"

    found = await judge(backend, text, {"kind": "words", "words": ["FILM"]})
    seen = [await judge(backend, each, mood()) for each in (plain, hidden)]

    assert [(one["start"], one["end"]) for one in found["findings"]] == [(2, len(text))]
    assert seen[0]["findings"][0]["score"] == seen[1]["findings"][0]["score"]
    assert seen[1]["findings"][0]["end"] == len(hidden)


@pytest.mark.parametrize(
    ("texts", "hidden"),
    [
        (("the bad film", "the badxx film"), "the bad\U000e0078\U000e0078 film"),
        (("the bad film", "the badfilm"), "the bad\u200bfilm"),
    ],
)
async def test_a_finding_of_several_readings_has_the_best_score(
    backend: Backend, texts: tuple[str, str], hidden: str
) -> None:
    plain = [(await judge(backend, text, mood()))["findings"][0]["score"] for text in texts]

    (found,) = (await judge(backend, hidden, mood()))["findings"]

    assert plain[0] != plain[1]
    assert found["score"] == max(plain)


async def test_entities_are_found_by_their_types(backend: Backend) -> None:
    text = "paris is the film"
    everything = await backend.answer("names", Task.ENTITIES, text)
    assert everything["entities"]

    answer = await judge(
        backend,
        text,
        {"kind": "entities", "model": "names", "labels": {"PER": 0.0}, "action": "redact"},
    )

    assert [(one["start"], one["end"]) for one in answer["findings"]] == [
        (one["start"], one["end"]) for one in everything["entities"]
    ]


@pytest.fixture
def gliner(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    assert import_folder(unpack("gliner-00", tmp_path), models) is None
    manifest = {"kind": "algorithm", "algorithm": "guard", "uses": ["gliner-00"]}
    write_model(models, "detectors", manifest | {"tasks": ["guard"]})
    return models


async def test_scores_say_what_other_thresholds_would_find(backend: Backend) -> None:
    entities = {"kind": "entities", "model": "names", "labels": {"PER": 1.0}}
    words = {"kind": "words", "words": ["paris"]}

    answer = await judge(backend, "paris is the film", entities, similar(threshold=1.0), words)
    allowed = await judge(backend, "paris is the film", mood(), allow=("Paris is the film",))
    without = await judge(backend, "paris is the film", mood(), with_scores=False)

    found = await backend.answer("names", Task.ENTITIES, "paris is the film")
    best = max(one["score"] for one in found["entities"] if one["label"] == "PER")
    assert answer["scores"]["d0"] == {"best": {"PER": best}}
    assert 0 < max(answer["scores"]["d1"]["best"].values()) < 1
    assert answer["scores"]["d2"] == {"best": {"WORD": 1.0}}
    assert [one["detector"] for one in answer["findings"]] == ["d2"]
    assert (allowed["verdict"], allowed["scores"]) == ("allow", {})
    assert "scores" not in without


async def test_of_many_scores_the_best_are_told(backend: Backend) -> None:
    both = mood(labels={"negative": 1.0, "positive": 1.0})

    one = await judge(backend, "the bad film", both)
    many = await judge(backend, "the bad film", *[both] * 33)

    (best, score), (_, left_out) = sorted(
        one["scores"]["d0"]["best"].items(), key=lambda one: -one[1]
    )
    # A label that is left out may have this score itself: the threshold must be higher.
    known = {"best": {best: score}, "least": math.nextafter(left_out, 1.0)}
    assert many["scores"] == {f"d{number}": known for number in range(33)}


async def test_a_model_of_any_type_says_from_which_score_it_knows(gliner: Path) -> None:
    detector = {"kind": "entities", "model": "gliner-00", "labels": {"city": 1.0, "person": 0.9}}

    async with running_backend(gliner, threads=1) as backend:
        answer = await judge(backend, "fish", detector)

    assert answer["scores"]["d0"]["least"] == 0.9


async def test_a_label_with_a_high_threshold_hides_no_other_label(gliner: Path) -> None:
    text = "paris cafe x-y_z fish " * 10
    everything = EntitiesParameters(
        labels=["city", "person"], threshold=0.1, flat=False, multi_label=True
    )

    async with running_backend(gliner, threads=1) as backend:
        entities = (await backend.answer("gliner-00", Task.ENTITIES, text, parameters=everything))[
            "entities"
        ]
        answers = [
            await judge(backend, text, {"kind": "entities", "model": "gliner-00", "labels": labels})
            for labels in ({"city": 1.0, "person": 0.11}, {"city": 0.11, "person": 1.0})
        ]

    for label, answer in zip(("person", "city"), answers, strict=True):
        expected = {
            (one["start"], one["end"])
            for one in entities
            if one["label"] == label and one["score"] >= 0.11
        }
        assert expected
        assert {(one["start"], one["end"]) for one in answer["findings"]} == expected


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_a_text_without_words_has_nothing_to_find(backend: Backend, text: str) -> None:
    answer = await judge(backend, text, mood())

    assert answer == {"verdict": "allow", "findings": [], "scores": {}}


@pytest.mark.parametrize(
    ("detector", "said"),
    [
        (mood(model="other"), "names the model `other`; this guard has `mood`"),
        (mood(model="names"), "needs a classifier"),
        (mood(labels={"sad": 0.5}), "names the label `sad`"),
        (mood(labels={}), "either `labels` or `expected`"),
        ({"kind": "entities", "model": "mood", "labels": {"PER": 0}}, "a model of entities"),
        ({"kind": "pattern", "pattern": "(a"}, "a pattern of the guard is no regular expression"),
        (similar(model="mood"), "needs a model of plain embeddings"),
        (similar(examples={"a": ["good " * 31]}), "an example that its model cannot read"),
    ],
)
async def test_a_guard_that_fits_no_model_allows_nothing(
    backend: Backend, detector: dict[str, Any], said: str
) -> None:
    refused = await refusal(backend, "a film", detector)

    assert refused.code == "guard_invalid"
    assert said in refused.detail
