"""A model owner's algorithm: what it does wrong is its own items' error, and nobody else's."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.algorithms.harness import answer
from backends.algorithms.registry import describe
from backends.errors import ItemRefused
from backends.executors.dummy import DummyExecutor
from backends.protocol import Done, Failed, InferParameters, Task
from backends.repository.catalogue import read_catalogue
from loadtests.harness.model_repository import DIMENSIONS, write_model, write_repository
from loadtests.harness.waiting import until
from tests.support.backend_calls import Backend, running_backend

pytestmark = pytest.mark.anyio
CODE = """
import asyncio
import sys
import time
from typing import TypedDict

from backends.algorithms.authoring import Ask, Refused


class Item(TypedDict):
    do: str


class Answer(TypedDict):
    value: float


async def run(item: Item, ask: Ask, *, text: str = "good film") -> Answer:
    match item["do"]:
        case "answer":
            (logits,) = await ask("mood", [text])
            return {"value": logits[0]}
        case "labels":
            found = await ask.answer("topics", text, labels=["film", "card"])
            return {"value": found["labels"][0]["score"]}
        case "choose":
            given = {"prompt": text, "choices": ["film", text]}
            return {"value": (await ask.answer("topics", given, task="choose"))["choice"]}
        case "refuse":
            raise Refused("send something else")
        case "fail":
            return {"value": 1 / len(text[:0])}
        case "exit":
            sys.exit(3)
        case "cancel":
            raise asyncio.CancelledError
        case "wrong":
            return {"value": "secret"}
        case "stranger":
            await ask("names", [text])
        case "nothing":
            await ask("nothing", [text])
        case "rowless":
            await ask("topics", [text])
        case "greedy":
            await asyncio.gather(*(ask("mood", [f"{text} {n}"]) for n in range(9)))
        case "nobody":
            await ask("mood", ["x" * 100_000])
        case "sleep":
            await asyncio.Event().wait()
        case "block":
            time.sleep(0.7)
        case "spin":
            while True:
                pass
    return {"value": 0.0}
"""
FAILING = CODE[: CODE.index("1 / len")].count("\n") + 1
MANIFEST = {
    "kind": "algorithm",
    "algorithm": "custom",
    "code": "own.py",
    "uses": ["mood", "topics"],
    "tasks": ["infer"],
    "options": {"time": 0.3, "rows": 8},
}


def write_own(models: Path, text: str = CODE, **changes: Any) -> Path:
    folder = write_model(models, "own", MANIFEST | changes)
    (folder / "own.py").write_text(text)
    return models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_own(write_repository(tmp_path / "models"))


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


async def ask(backend: Backend, do: str, **parameters: Any) -> Done | Failed:
    given = InferParameters(parameters=parameters)
    (outcome,) = await backend.ask("own", Task.INFER, [{"do": do}], parameters=given)
    return outcome


@pytest.mark.parametrize("do", ["answer", "labels", "choose"])
async def test_it_asks_rows_and_answers_of_the_models_it_uses(backend: Backend, do: str) -> None:
    outcome = await ask(backend, do)

    assert isinstance(outcome, Done), outcome
    assert isinstance(msgspec.json.decode(outcome.result)["value"], int | float)
    assert outcome.rows >= 1


@pytest.mark.parametrize(
    ("do", "code", "said"),
    [
        ("refuse", "refused_by_algorithm", "send something else"),
        ("fail", "algorithm_failed", f"`ZeroDivisionError` in own.py, line {FAILING}"),
        ("exit", "algorithm_failed", "`SystemExit` in own.py"),
        ("cancel", "algorithm_failed", "`CancelledError` in own.py"),
        ("wrong", "algorithm_failed", "Expected `float`, got `str`"),
        ("stranger", "algorithm_failed", "`ValueError` in own.py"),
        ("nothing", "algorithm_failed", "`ValueError` in own.py"),
        ("rowless", "algorithm_failed", "`ValueError` in own.py"),
        ("greedy", "too_many_rows", "may ask for 0"),
        ("nobody", "input_too_long", "shorten it"),
        ("sleep", "algorithm_too_slow", "more than the 0.3 s"),
        ("block", "algorithm_too_slow", "more than the 0.3 s"),
        ("spin", "algorithm_too_slow", "more than the 0.3 s"),
    ],
)
async def test_an_error_is_told_by_its_kind_and_place(
    backend: Backend, do: str, code: str, said: str
) -> None:
    outcome = await ask(backend, do)

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code, outcome.retryable) == (422, code, False)
    assert said in outcome.detail
    assert "secret" not in outcome.detail


@pytest.mark.parametrize("do", ["fail", "exit", "cancel", "sleep", "block", "spin"])
async def test_what_goes_wrong_leaves_the_next_item_alone(backend: Backend, do: str) -> None:
    await ask(backend, do)

    async with asyncio.timeout(60.0):
        while isinstance(await ask(backend, "answer"), Failed):
            pass


async def test_a_loop_without_end_holds_up_nobody_else(backend: Backend) -> None:
    stuck = asyncio.create_task(ask(backend, "spin"))
    await asyncio.wait({stuck}, timeout=0)  # it begins

    answers = [await backend.answer("mood", Task.CLASSIFY, f"film {n}") for n in range(10)]

    assert len(answers) == 10
    assert isinstance(await stuck, Failed)


async def test_a_loop_without_end_ends_after_its_caller_has_gone(backend: Backend) -> None:
    call = backend.call("own", Task.INFER, [{"do": "spin"}])
    exchange = backend.exchange(call)
    answering = asyncio.create_task(exchange.run())
    await asyncio.wait({answering}, timeout=0)  # it begins

    exchange.leave()
    await answering

    async with asyncio.timeout(60.0):
        while isinstance(await ask(backend, "answer"), Failed):
            pass


@pytest.mark.parametrize(
    ("item", "parameters", "code"),
    [
        ({"do": 1}, {}, "bad_item"),
        ({}, {}, "bad_item"),
        ("answer", {}, "bad_item"),
        ({"do": "answer"}, {"text": 1}, "bad_parameter"),
        ({"do": "answer"}, {"txt": "a"}, "bad_parameter"),
    ],
)
async def test_what_does_not_fit_its_types_is_refused(
    backend: Backend, item: object, parameters: dict[str, Any], code: str
) -> None:
    given = InferParameters(parameters=parameters)
    (outcome,) = await backend.ask("own", Task.INFER, [item], parameters=given)

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (422, code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def run(item, ask): ...", "no `async def run(item, ask)`"),
        ("async def go(item, ask): ...", "no `async def run(item, ask)`"),
        ("async def run(item): ...", "`item` and `ask` first"),
        ("async def run(item, ask, more): ...", "must come after a `*`"),
        ("async def run(item: unknown, ask): ...", "name 'unknown' is not defined"),
        ("import nothing_of_that_name", "`ModuleNotFoundError` in own.py, line 1"),
        ("raise SystemExit(1)", "`SystemExit` in own.py, line 1"),
        ("async def run(item, ask)", "SyntaxError"),
    ],
)
def test_code_that_is_no_algorithm_stops_its_model_alone(
    models: Path, code: str, said: str
) -> None:
    infos, problems = describe(read_catalogue(write_own(models, code)))

    assert said in problems["own"]
    assert set(problems) == {"own"}
    assert "mood" in {info.name for info in infos}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"code": None}, "needs `code`"),
        ({"code": "other.py"}, "names a file that is missing"),
        ({"code": "nothing_of_that_name:run"}, "cannot import `nothing_of_that_name`"),
        ({"code": "json:dumps"}, "no `async def dumps(item, ask)`"),
        ({"options": {"time": 0}}, "cannot read its `options`"),
        ({"options": {"rows": 0}}, "cannot read its `options`"),
        ({"options": {"row": 1}}, "cannot read its `options`"),
    ],
)
def test_a_model_yaml_without_code_or_budget_is_a_problem(
    models: Path, changes: dict[str, Any], said: str
) -> None:
    _, problems = describe(read_catalogue(write_own(models, **changes)))

    assert said in problems["own"]


def test_reading_the_code_leaves_the_revision_as_it_was(models: Path) -> None:
    before = read_catalogue(models).models["own"].revision
    describe(read_catalogue(models))
    (models / "own" / "1" / "__pycache__").mkdir()
    (models / "own" / "1" / "__pycache__" / "own.pyc").write_bytes(b"of a test run")

    assert read_catalogue(models).models["own"].revision == before
    assert {path.name for path in (models / "own" / "1").iterdir()} == {
        "model.yaml",
        "own.py",
        "__pycache__",
    }


def test_code_may_be_an_installed_entry_point(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owned_algorithms.py").write_text(
        "async def go(item: str, ask) -> str:\n    return item\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    infos, problems = describe(read_catalogue(write_own(models, code="owned_algorithms:go")))

    assert not problems
    assert "own" in {info.name for info in infos}


async def test_its_thread_ends_with_its_model(models: Path) -> None:
    def running() -> bool:
        return any(thread.name == "algorithm own" for thread in threading.enumerate())

    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        await ask(backend, "answer")
        assert running()
    del backend
    gc.collect()

    await until(lambda: not running())


def test_the_harness_holds_to_the_budget(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)

    with pytest.raises(ItemRefused, match="may ask for"):
        answer(tmp_path / "own.py", {"do": "greedy"}, models={"mood": lambda _: [0.0]}, rows=3)


def test_the_harness_answers_raw_outputs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    models = {"mood": lambda text: [float(len(text))]}

    found = answer(tmp_path / "own.py", {"do": "answer"}, models=models, parameters={"text": "abc"})

    assert found == {"value": 3.0}
