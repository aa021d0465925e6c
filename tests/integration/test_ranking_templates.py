"""Decoders that rank by a word read a template, or are refused with the reason."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sluicegate.backends.errors import ModelProblem, StartProblem
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.model_tools.importing.source import open_source
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import Failed, RerankParameters, Task
from testing.weight_files import write_safetensors
from tests.parity.library_fixtures import unpack
from tests.support.backend_calls import Backend, running_backend
from tests.support.odd_checkpoints import edit, write

pytestmark = pytest.mark.anyio
RANKER, CARD, EMBEDDER = "qwen3-05", "qwen3-08", "qwen3-04"
LIMITS = "sentence_bert_config.json"
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
async def backend(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    folder = tmp_path_factory.mktemp("ranking")
    for name in (RANKER, EMBEDDER):
        convert(unpack(name, folder), folder / "models" / name / "1")
    async with running_backend(folder / "models") as running:
        yield running


def template(text: str) -> Change:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
QUERY, DOCUMENT = (f"{{{{ messages[{place}].content }}}}" for place in (-2, -1))


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [
        (RANKER, template("no slots"), "chat template must show"),
        (RANKER, template(DOCUMENT + QUERY), "in this order"),
        (RANKER, template(f"{QUERY}{QUERY} {DOCUMENT}"), "once each"),
        (RANKER, template("{{ raise_exception('only chats') }}"), "only chats"),
        (RANKER, template("{{ messages"), "the chat template fails"),
        (RANKER, template(ENDLESS), "does not end"),
        (RANKER, template("{{ 'a' * 10 ** 10 }}"), "bytes of memory"),
        (RANKER, template(r"{{ '\ud800' }}"), "surrogates not allowed"),
        (RANKER, template("{{ 'a' * 10 ** 7 }}"), "more than 1000000 characters"),
        (RANKER, template("{{ ''.__class__.__mro__ }}" + QUERY + DOCUMENT), "unsafe"),
        (RANKER, template(f"<{QUERY}x{DOCUMENT}>"), "join the tokens"),
        (RANKER, edit("1_LogitScore/config.json", true_token_id="yes"), "true_token_id"),
        (RANKER, edit("1_LogitScore/config.json", true_token_id=10**6), "no row"),
        (RANKER, edit("1_LogitScore/config.json", true_token_id=-1), "`int` >= 0"),
        (RANKER, write("chat_template.jinja", b"\xff"), "chat_template.jinja"),
        (RANKER, edit(LIMITS, processing_kwargs={"text": {"padding": True}}), "processing_kwargs"),
        (CARD, edit("tokenizer.json", model={}), "tokenizer.json"),
    ],
)
def test_a_template_that_cannot_be_served_is_refused(
    tmp_path: Path, name: str, change: Change, named: str
) -> None:
    folder = unpack(name, tmp_path)
    change(folder)

    with pytest.raises((StartProblem, ModelProblem), match=named):
        convert(folder, tmp_path / "1")


def test_a_copied_folder_with_a_chat_template_is_told_the_import(tmp_path: Path) -> None:
    folder = unpack(RANKER, tmp_path)
    entry = tmp_path / "models" / "m" / "1"
    convert(folder, entry)
    (entry / "model.yaml").write_text("labels: [relevant]\ntasks: [rerank]\n")

    assert "`models import`" in read_catalogue(tmp_path / "models").problems["m"]


def test_an_instruction_of_the_owner_replaces_that_of_the_checkpoint(tmp_path: Path) -> None:
    folder = unpack(RANKER, tmp_path)
    (folder / "model.yaml").write_text(json.dumps({"template": {"instruction": "Mine"}}))
    convert(folder, tmp_path / "models" / "m" / "1")

    manifest = read_catalogue(tmp_path / "models").models["m"].manifest

    assert getattr(manifest, "template").instruction == "Mine"  # noqa: B009 - of one kind alone


async def test_braces_in_texts_are_text(backend: Backend) -> None:
    scores = []
    for query in ("{document}", "{query}", "{instruction}"):
        given = RerankParameters(query=query, instruction="{query}")
        answer = await backend.answer(RANKER, Task.RERANK, "{query} {document}", parameters=given)
        scores.append(answer["score"])

    assert len(set(scores)) == len(scores)


async def test_a_model_without_a_template_reads_no_instruction(backend: Backend) -> None:
    given = RerankParameters(query="a", instruction="b")
    (outcome,) = await backend.ask(EMBEDDER, Task.RERANK, ["a"], parameters=given)

    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_instruction"


async def test_a_decoder_ranks_by_one_score(backend: Backend) -> None:
    given = RerankParameters(query="a", instruction="b", weights={"dense": 1.0})
    (outcome,) = await backend.ask(RANKER, Task.RERANK, ["a"], parameters=given)

    assert isinstance(outcome, Failed)
    assert outcome.code == "bad_output"


async def test_an_empty_pair_is_refused(backend: Backend) -> None:
    given = RerankParameters(query=" ")
    (outcome,) = await backend.ask(RANKER, Task.RERANK, [" "], parameters=given)

    assert isinstance(outcome, Failed)
    assert outcome.code == "empty_input"


@pytest.mark.parametrize(
    ("config", "files", "says"),
    [
        ({"task_type": "SEQ_CLS"}, {}, "ranks by words"),
        ({"task_type": "CAUSAL_LM"}, {"chat_template.jinja": "{{ query }}"}, "differs from"),
    ],
)
def test_an_adapter_that_ranks_in_another_way_is_refused(
    tmp_path: Path, config: dict[str, str], files: dict[str, str], says: str
) -> None:
    base, adapter = unpack(RANKER, tmp_path), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    write_safetensors(adapter / "adapter_model.safetensors", {})
    for file, text in files.items():
        (adapter / file).write_text(text)

    with pytest.raises(StartProblem, match=says):
        open_source(adapter, base=base)
