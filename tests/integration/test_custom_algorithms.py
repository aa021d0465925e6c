"""A model owner's algorithm: what it does wrong is its own items' error, and nobody else's."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from sluicegate.backends.algorithms import host_process
from sluicegate.backends.algorithms.harness import answer
from sluicegate.backends.algorithms.registry import describe
from sluicegate.backends.errors import ItemRefused
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import Done, Failed, InferParameters, Task
from testing.model_repository import DIMENSIONS, write_model, write_repository
from testing.waiting import until
from tests.support.algorithm_cores import give_a_core
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor

pytestmark = pytest.mark.anyio
CODE = """
import asyncio
import sys
import threading
from typing import TypedDict

import numpy as np

from sluicegate.algorithms import Ask, Refused


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
        case "raise":
            raise KeyError(text)
        case "nan":
            return {"value": float("nan")}
        case "infinite":
            return {"value": float("inf")}
        case "array of nan":
            return {"value": np.full((), np.nan, dtype=np.float32)}
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
            threading.Event().wait()
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
    "options": {"time": 1.0, "rows": 8},
}


def write_own(models: Path, text: str = CODE, **changes: Any) -> Path:
    folder = write_model(models, "own", MANIFEST | changes)
    (folder / "own.py").write_text(text)
    return models


def hosts() -> set[int]:
    """Return the ids of the processes of algorithms that this process has started."""
    started = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, parent, *_ = path.read_text().rpartition(") ")[2].split()
            if (
                int(parent) == os.getpid()
                and b"algorithms.host" in (path.parent / "cmdline").read_bytes()
            ):
                started.add(int(path.parent.name))
    return started


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return write_own(write_repository(tmp_path / "models"))


@pytest.fixture
async def backend(models: Path) -> AsyncIterator[Backend]:
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backend]:
    """Run a backend for all that does not end the algorithm's process."""
    models = write_own(write_repository(tmp_path_factory.mktemp("custom") / "models"))
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as running:
        yield running


async def ask(backend: Backend, do: str, **parameters: Any) -> Done | Failed:
    given = InferParameters(parameters=parameters)
    (outcome,) = await backend.ask("own", Task.INFER, [{"do": do}], parameters=given)
    return outcome


@pytest.mark.parametrize("do", ["answer", "labels", "choose"])
async def test_it_asks_rows_and_answers_of_the_models_it_uses(shared: Backend, do: str) -> None:
    outcome = await ask(shared, do)

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
        ("greedy", "too_many_rows", "0 rows left"),
        ("nobody", "input_too_long", "shorten it"),
        ("sleep", "algorithm_too_slow", "1 s"),
    ],
)
async def test_an_error_is_told_by_its_kind_and_place(
    shared: Backend, do: str, code: str, said: str
) -> None:
    outcome = await ask(shared, do)

    assert isinstance(outcome, Failed)
    status = 500 if code == "algorithm_failed" else 422
    assert (outcome.status, outcome.code, outcome.retryable) == (status, code, False)
    assert said in outcome.detail
    assert "secret" not in outcome.detail


@pytest.mark.parametrize("do", ["fail", "exit", "cancel", "sleep"])
async def test_what_goes_wrong_leaves_the_next_item_alone(shared: Backend, do: str) -> None:
    await ask(shared, do)

    assert isinstance(await ask(shared, "answer"), Done)


@pytest.mark.parametrize("do", ["block", "spin"])
async def test_an_item_that_holds_the_process_is_refused_and_holds_up_nobody_else(
    backend: Backend, do: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_a_core(monkeypatch)
    stuck = asyncio.create_task(ask(backend, do))
    await asyncio.wait({stuck}, timeout=0)  # it begins

    answers = [await backend.answer("mood", Task.CLASSIFY, f"film {n}") for n in range(10)]
    beside = await ask(backend, "answer")
    outcome = await stuck

    assert len(answers) == 10
    assert isinstance(beside, Done), beside
    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (422, "algorithm_killed")
    assert "held by one step" in outcome.detail


async def test_the_time_in_which_others_hold_the_process_is_not_counted(tmp_path: Path) -> None:
    """Four items at once, one after the other: together they take more than the time of one."""
    code = """
import time


async def run(item, ask):
    until = time.process_time() + 0.6
    while time.process_time() < until:
        pass
    return item
"""
    models = write_own(write_repository(tmp_path / "models"), code, options={"time": 2.0})
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        outcomes = await backend.ask("own", Task.INFER, ["a", "b", "c", "d"])
        while any(isinstance(each, Failed) and each.status == 503 for each in outcomes):
            # The machine gave the process too little time on a core.
            outcomes = await backend.ask("own", Task.INFER, ["a", "b", "c", "d"])

    assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes


async def test_an_item_is_not_blamed_for_the_time_in_which_the_backend_got_no_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_process, "waited_for_core", monotonic)
    models = write_own(write_repository(tmp_path / "models"), options={"time": 0.1})
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        outcome = await ask(backend, "sleep")

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code, outcome.retryable) == (503, "overloaded", True)


async def test_the_log_says_where_the_code_failed_and_no_text(
    shared: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    await ask(shared, "raise", text="confidential")

    (line,) = [record for record in caplog.records if record.message == "an algorithm failed"]
    trace = vars(line)["error"]
    assert trace.startswith("KeyError at ")
    assert "own.py:" in trace
    assert "confidential" not in str(vars(line))


@pytest.mark.parametrize("do", ["nan", "infinite", "array of nan"])
async def test_a_number_that_json_does_not_have_is_an_error(shared: Backend, do: str) -> None:
    outcome = await ask(shared, do)

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (500, "algorithm_failed")
    assert "NaN" in outcome.detail


async def test_a_reload_replaces_the_process_of_a_changed_model_alone(models: Path) -> None:
    pid = "import os\nasync def run(item, ask):\n    return os.getpid()\n"
    write_own(models, pid)
    (write_model(models, "other", MANIFEST) / "own.py").write_text(pid)
    async with running_backend(
        models, DummyExecutor(dimensions=DIMENSIONS), retire_after=0.0
    ) as backend:
        before = [await backend.answer(name, Task.INFER, "a") for name in ("own", "other")]
        write_own(models, pid + "# changed\n")
        await backend.reload()
        after = [await backend.answer(name, Task.INFER, "a") for name in ("own", "other")]

        assert after[0] not in before
        assert after[1] == before[1]
        await until(lambda: before[0] not in hosts())
        assert hosts() >= set(after)


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
    shared: Backend, item: object, parameters: dict[str, Any], code: str
) -> None:
    given = InferParameters(parameters=parameters)
    (outcome,) = await shared.ask("own", Task.INFER, [item], parameters=given)

    assert isinstance(outcome, Failed)
    assert (outcome.status, outcome.code) == (422, code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def run(item, ask): ...", "no `async def run(item, ask)`"),
        ("async def go(item, ask): ...", "no `async def run(item, ask)`"),
        ("async def run(item): ...", "`item` and `ask`"),
        ("async def run(item, ask, more): ...", "after a `*`"),
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
    found = {path.name for path in (models / "own" / "1").iterdir()}
    # A record of the digests is written if the files are older than 2 s.
    assert found - {".digests.json"} == {"model.yaml", "own.py", "__pycache__"}


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


async def test_its_process_ends_with_its_model(models: Path) -> None:
    before = hosts()

    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        await ask(backend, "answer")
        assert hosts() - before

    await until(lambda: not hosts() - before)


def test_the_harness_holds_to_the_budget(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)

    with pytest.raises(ItemRefused, match="rows left"):
        answer(tmp_path / "own.py", {"do": "greedy"}, models={"mood": lambda _: [0.0]}, rows=3)


def test_the_harness_answers_raw_outputs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CODE)
    models = {"mood": lambda text: [float(len(text))]}

    found = answer(tmp_path / "own.py", {"do": "answer"}, models=models, parameters={"text": "abc"})

    assert found == {"value": 3.0}
