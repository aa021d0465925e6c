"""Tests that served answers equal the reference libraries' and that each injected fault shows.

The references are recorded (`make parity` makes them anew), so that torch is not needed here.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import tokenizers

from sluicegate.backends.app import make_routes, open_backend
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.qualification.qualify import qualify_unmeasured
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization.tokenizer import Tokenizer
from tests.parity import faults
from tests.parity.checkpoints import (
    Checkpoint,
    Family,
    Purpose,
    all_checkpoints,
)
from tests.parity.comparison import Difference, compare
from tests.parity.references import References, read_references, reference_file
from tests.parity.served import MINILM, Served, serving, without_device_graphs, write_models
from tests.parity.texts import pairs, read_texts
from tests.support.backend_calls import Backend

pytestmark = pytest.mark.anyio

# Texts were drawn at random: the first ones are of every kind.
_SOME, _FEW = 80, 40
# The published encoder is asked for embeddings here. With other heads, `make parity` alone asks it.
# Questions have a file of their own.
CHECKPOINTS = [
    each for each in all_checkpoints() if each.family != MINILM and each.purpose != "answer"
]
BERT_PAIRS = Checkpoint(family="bert", purpose="many")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return read_texts()


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    with without_device_graphs():
        models = write_models(tmp_path_factory.mktemp("parity") / "models", CHECKPOINTS)
        convert(find_source(), models / MINILM / "1")
    async with serving(models) as running:
        yield running


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda each: each.name)
async def test_answers_are_those_of_the_reference(
    served: Served, texts: list[str], checkpoint: Checkpoint
) -> None:
    """About all texts models are asked by `make parity` alone: it takes seconds."""
    expected = read_references(reference_file(checkpoint.name)).take(_SOME)

    differences = compare(await served.answer(checkpoint, texts, _SOME), expected)

    assert differences
    assert [line for line in differences if not line.is_equal] == []


@pytest.mark.parametrize("device", ["cuda-heads", "any-plain"])
@pytest.mark.parametrize("family", ["distilbert", "deberta", "modernbert"])
async def test_graphs_for_gpus_answer_as_the_reference(
    tmp_path: Path, texts: list[str], family: Family, device: str
) -> None:
    """Those that a CPU has kernels for, served in the place of the graph for CPUs."""
    purposes: tuple[Purpose, ...] = ("text", "tokens", "embed")
    checkpoints = [Checkpoint(family=family, purpose=purpose) for purpose in purposes]
    models = write_models(tmp_path, checkpoints)
    for checkpoint in checkpoints:
        manifest = models / checkpoint.name / "1" / "model.yaml"
        manifest.write_text(f"truncate: true\ngraph: model.{device}.onnx\n")

    async with serving(models) as running:
        found = [await running.answer(checkpoint, texts, _FEW) for checkpoint in checkpoints]

    for checkpoint, answers in zip(checkpoints, found, strict=True):
        expected = read_references(reference_file(checkpoint.name)).take(_FEW)
        assert [line for line in compare(answers, expected) if not line.is_equal] == []


async def test_minilm_embeds_as_sentence_transformers_do(served: Served, texts: list[str]) -> None:
    found = References()
    found.scores["embedding"] = await served.embeddings(MINILM, texts[:_FEW])

    (line,) = compare(found, read_references(reference_file(MINILM)).take(_FEW))

    assert line.is_equal, line


@pytest.mark.parametrize(
    "checkpoint", [each for each in all_checkpoints() if each.labels], ids=lambda each: each.name
)
def test_logits_spread_so_that_parity_says_something(checkpoint: Checkpoint) -> None:
    assert read_references(reference_file(checkpoint.name)).spread >= 1.0


# Deliberate faults


async def differences_on_pairs(models: Path, texts: list[str]) -> dict[str, Difference]:
    async with serving(models) as running:
        found = await running.answer(BERT_PAIRS, texts, _SOME)
    return by_task(found)


def by_task(found: References) -> dict[str, Difference]:
    expected = read_references(reference_file(BERT_PAIRS.name)).take(_SOME)
    return {line.task: line for line in compare(found, expected)}


@pytest.mark.parametrize(
    ("fault", "breaks_single"),
    [
        (faults.wrong_token_types, False),
        (faults.dropped_template, True),
    ],
)
async def test_a_fault_in_the_tokenizer_breaks_parity(
    tmp_path: Path, texts: list[str], fault: Callable[[Path], None], *, breaks_single: bool
) -> None:
    models = write_models(tmp_path, [BERT_PAIRS])
    fault(models / BERT_PAIRS.name / "1")

    lines = await differences_on_pairs(models, texts)

    assert not lines["pair"].is_equal
    assert lines["single"].is_equal is not breaks_single


async def test_a_swapped_pair_breaks_parity(served: Served, texts: list[str]) -> None:
    swapped = [(second, first) for first, second in pairs(texts)[:_SOME]]
    found = References()
    found.scores["pair"] = await served.labels(BERT_PAIRS.name, swapped, BERT_PAIRS.labels)
    expected = read_references(reference_file(BERT_PAIRS.name)).take(_SOME)
    found.scores["single"] = expected.scores["single"]

    assert not by_task(found)["pair"].is_equal


async def test_zero_shot_without_its_template_breaks_parity(
    served: Served, texts: list[str]
) -> None:
    checkpoint = Checkpoint(family="bert", purpose="text")
    expected = read_references(reference_file(checkpoint.name)).take(_SOME)
    found = References()
    texts = texts[:_SOME]
    found.scores = expected.scores | {
        "zero-shot": await served.zero_shot(checkpoint.name, texts, several=False, template="{}")
    }

    (line,) = [line for line in compare(found, expected) if line.task == "zero-shot"]

    assert not line.is_equal


async def test_cutting_the_beginning_of_long_texts_breaks_parity(
    tmp_path: Path, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = write_models(tmp_path, [BERT_PAIRS])
    whole = Tokenizer._copy

    def cut_left(self: Tokenizer, truncate_to: int | None) -> tokenizers.Tokenizer:
        copy = whole(self, truncate_to)
        if copy.truncation is not None:
            copy.enable_truncation(copy.truncation["max_length"], direction="left")
        return copy

    monkeypatch.setattr(Tokenizer, "_copy", cut_left)

    assert not (await differences_on_pairs(models, texts))["single"].is_equal


async def test_padding_on_the_left_breaks_parity(tmp_path: Path, texts: list[str]) -> None:
    models = write_models(tmp_path, [BERT_PAIRS])
    settings = BackendSettings(models=models, threads=1)

    def open_executor(source: GraphSource) -> faults.LeftPadding:
        return faults.LeftPadding(OnnxExecutor(source, worker_threads=1))

    async with open_backend(
        settings, tracing=NO_TRACING, open_executor=open_executor, qualify=qualify_unmeasured
    ) as repository:
        routes = make_routes(repository, settings, NO_TRACING)
        running = Served(Backend(routes, repository))
        found = await running.answer(BERT_PAIRS, texts, _SOME)

    assert not by_task(found)["single"].is_equal
