"""The runner of bulk jobs: a backend's answers, in a plain process, the same every time."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from sluicegate.backends.batching.policy import BatchLimits
from sluicegate.backends.bulk.planned_rows import PlannedBatches, divide
from sluicegate.backends.bulk.runner import BulkFailure, BulkResult, BulkRunner, Outcome
from sluicegate.backends.errors import (
    BackendError,
    ModelFailed,
    OutOfMemory,
    StartProblem,
    UpstreamFailed,
)
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.simulated import SimulatedExecutor
from sluicegate.backends.types import Encoding, OutputKind
from testing.model_repository import make_tokenizer, write_encoder

_TEXTS = ["a gorgeous, witty movie", "labored gags", "an idea", "a gorgeous, witty movie"]


def _json(outcomes: list[Outcome]) -> list[bytes]:
    return [each.as_json() if isinstance(each, BulkResult) else b"" for each in outcomes]


@pytest.fixture(scope="module")
def classifier(light_models: Path) -> Iterator[BulkRunner]:
    with BulkRunner(light_models, model="sentiment", task="classify") as runner:
        yield runner


def test_items_have_their_answers_in_order_and_a_bad_one_ends_no_other(
    classifier: BulkRunner,
) -> None:
    outcomes = classifier.run([_TEXTS[0], "", _TEXTS[1], 5, ("a pair", "of texts")])

    assert [type(each) for each in outcomes] == [
        *(BulkResult, BulkFailure, BulkResult, BulkFailure, BulkResult)
    ]
    refused = [each.code for each in outcomes if isinstance(each, BulkFailure)]
    assert refused == ["empty_input", "bad_item"]
    first, second = classifier.run([_TEXTS[0]]) + classifier.run([_TEXTS[1]])
    for alone, beside in ((first, outcomes[0]), (second, outcomes[2])):
        assert isinstance(alone, BulkResult)
        assert isinstance(beside, BulkResult)
        assert alone.value["labels"][0] == {
            **beside.value["labels"][0],
            "score": pytest.approx(beside.value["labels"][0]["score"], abs=1e-5),
        }


@pytest.mark.parametrize("splits", ["BertPreTokenizer", "Whitespace"])
def test_many_items_have_their_answers_in_order(tmp_path: Path, splits: str) -> None:
    file = write_encoder(tmp_path, real=True) / "tokenizer.json"
    made = make_tokenizer()
    made.pre_tokenizer = getattr(pre_tokenizers, splits)()
    made.save(str(file))
    texts = [f"{'good ' * (n % 7)}{'film ' * (n % 11)}{'is ' * (n % 13)}bad" for n in range(600)]
    places = [0, 255, 256, 599]

    with BulkRunner(tmp_path, model="tiny", task="embed") as runner:
        together = runner.run(texts)
        alone = [runner.run([texts[place]])[0] for place in places]

    for place, one in zip(places, alone, strict=True):
        assert isinstance(one, BulkResult)
        assert isinstance(other := together[place], BulkResult)
        assert np.abs(one.value["embedding"] - other.value["embedding"]).max() < 1e-5


def test_equal_parts_have_equal_answers_whatever_runs_beside_them(classifier: BulkRunner) -> None:
    words = [f"{text} {'very ' * (n % 7)}{n}" for n, text in enumerate(_TEXTS * 20)]
    expected = _json(classifier.run(words))

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(_json, pool.map(classifier.run, [words, words[::-1], words])))

    assert found[0] == found[2] == expected


@pytest.mark.anyio
async def test_it_runs_below_a_loop_of_its_caller_and_without_one(light_models: Path) -> None:
    def embed() -> list[Outcome]:
        parameters = {"dimensions": 4}
        with BulkRunner(light_models, model="minilm", task="embed", parameters=parameters) as own:
            return own.run(_TEXTS)

    (first, *_, last) = await asyncio.to_thread(embed)

    assert isinstance(first, BulkResult)
    assert isinstance(last, BulkResult)
    assert first.value["embedding"].shape == (4,)
    assert np.array_equal(first.value["embedding"], last.value["embedding"])


def test_algorithms_that_ask_several_times_are_run_in_rounds(demo_models: Path) -> None:
    parameters = {"labels": ["sports", "business"]}
    with BulkRunner(demo_models, model="topics", task="zero-shot", parameters=parameters) as runner:
        outcomes = runner.run(["The striker scored twice.", " ", "Shares fell."])
        again = runner.run(["The striker scored twice.", " ", "Shares fell."])

    assert _json(outcomes) == _json(again)
    labels = [each.value["labels"][0]["label"] for each in outcomes if isinstance(each, BulkResult)]
    assert labels == ["sports", "business"]


def test_every_item_of_a_part_is_in_each_round_however_long_its_text_takes(
    demo_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    run = PlannedBatches.run

    def count(self: PlannedBatches, encodings: Sequence[Encoding], kind: OutputKind) -> Any:
        rounds.append(len(encodings))
        return run(self, encodings, kind)

    monkeypatch.setattr(PlannedBatches, "run", count)
    parameters = {"labels": ["sports", "business"]}
    options: dict[str, Any] = {"provider": "paced", "paced_base": 0, "paced_token": 0}
    texts = [f"{n} {'word ' * (40 + 500 * (n % 7 == 0))}" for n in range(200)]
    with BulkRunner(
        demo_models, model="topics", task="zero-shot", parameters=parameters, **options
    ) as runner:
        rounds.clear()
        outcomes = runner.run(texts)

    assert all(isinstance(outcome, BulkResult) for outcome in outcomes)
    assert rounds == [200]


def test_a_part_may_hold_more_text_than_a_backend_lets_wait(
    light_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.backends.tokenization.text_queue._MOST_CHARACTERS", 10_000)
    with BulkRunner(light_models, model="minilm", task="tokenize", provider="paced") as runner:
        outcomes = runner.run(["word " * 1000 for _ in range(5)])

    assert all(isinstance(outcome, BulkResult) for outcome in outcomes)


@pytest.mark.parametrize("task", ["embed", "rerank"])
def test_a_bad_row_fails_alone_and_what_may_pass_ends_the_job(
    light_models: Path, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    failure: BackendError

    def fail(_: SimulatedExecutor, batch: PaddedBatch) -> Any:
        raise failure

    parameters = {"query": "what"} if task == "rerank" else {}
    with BulkRunner(
        light_models, model="minilm", task=task, parameters=parameters, provider="paced"
    ) as runner:
        monkeypatch.setattr(SimulatedExecutor, "run", fail)
        for failed in (ModelFailed("no finite number"), UpstreamFailed("400 Bad Request")):
            failure = failed
            (outcome,) = runner.run(["a text"])
            assert isinstance(outcome, BulkFailure)
            assert outcome.code == "model_failed"
        failure = OutOfMemory("too little")
        with pytest.raises(OutOfMemory):
            runner.run(["a text"])


def test_an_output_of_another_shape_is_a_failure(
    light_models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = SimulatedExecutor.run

    with BulkRunner(light_models, model="minilm", task="embed", provider="paced") as runner:
        monkeypatch.setattr(SimulatedExecutor, "run", lambda *given: compute(*given)[..., :-1])
        (outcome,) = runner.run(["a text"])

    assert isinstance(outcome, BulkFailure)
    assert outcome.code == "model_failed"


@pytest.mark.parametrize(
    ("model", "task", "parameters", "message"),
    [
        ("absent", "embed", {}, "no model `absent`"),
        ("minilm", "classify", {}, "no task `classify`; it has `embed`, `rerank`"),
        ("minilm", "nothing", {}, "the task `nothing`"),
        ("minilm", "embed", {"size": 5}, "unknown field `size`"),
    ],
)
def test_wrong_wishes_are_named(
    light_models: Path, model: str, task: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(StartProblem, match=message):
        BulkRunner(light_models, model=model, task=task, parameters=parameters)


@pytest.mark.parametrize(
    ("most_padding", "expected"),
    [
        (math.inf, [[30], [10, 9], [8, 5], [5, 5, 5]]),
        (2, [[30], [10, 9], [8], [5, 5, 5], [5]]),
    ],
)
def test_batches_are_bounded_by_rows_by_tokens_of_the_longest_and_by_padding(
    most_padding: float, expected: list[list[int]]
) -> None:
    limits = BatchLimits(rows=3, tokens=20)
    rows = [
        Encoding(ids=np.arange(length, dtype=np.int32), type_ids=None, key=bytes([n]))
        for n, length in enumerate([30, 10, 9, 8, 5, 5, 5, 5])
    ]

    batches = divide(rows, limits, most_padding=most_padding)

    assert [[len(each.ids) for each in batch] for batch in batches] == expected
