"""An algorithm whose process gets no core is not too slow, and its items are not to blame."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sluicegate.wire.protocol import Done, Failed, Task
from testing.hostile_algorithms import HARM, HEAD
from testing.model_repository import DIMENSIONS, write_repository
from testing.waiting import WAIT_LIMIT
from tests.integration.test_custom_algorithms import write_own
from tests.support.algorithm_cores import give_a_core
from tests.support.backend_calls import Backend, running_backend
from tests.support.executors import DummyExecutor, PacedExecutor

pytestmark = pytest.mark.anyio
# By processor time: a clock would count the time of others, too.
CODE = """
import os
import time


async def run(item, ask):
    if isinstance(item, str):
        while os.path.exists(item):
            pass
        return os.getpid()
    until = time.process_time() + item
    while time.process_time() < until:
        pass
    return os.getpid()
"""
TIME = 0.3
_BUSY = 40
_PROGRAM = """
import os, signal
os.sched_setaffinity(0, {{{core}}})
os.setpriority(os.PRIO_PROCESS, 0, 19)
for _ in range({others}):
    if not os.fork():
        break
else:
    print(flush=True)
signal.alarm(300)
while True:
    pass
"""


@contextmanager
def without_a_core(process: int) -> Iterator[None]:
    """Keep the only core that a process may use busy: the process gets a fortieth of its time.

    Its many rivals have its own priority: where tests run in the idle class, priorities are void.
    """
    core = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", _PROGRAM.format(core=core, others=_BUSY - 1)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0) as busy,
        ExitStack() as stack,
    ):
        stack.callback(os.killpg, busy.pid, signal.SIGKILL)
        assert busy.stdout is not None
        assert busy.stdout.readline()
        os.sched_setaffinity(process, {core})
        os.setpriority(os.PRIO_PROCESS, process, 19)
        yield


def own(folder: Path, *, time: float) -> Path:
    models = write_repository(folder / "models")
    return write_own(models, CODE, options={"time": time, "import_time": 60.0})


async def ask_until_it_counts(backend: Backend, item: object) -> Done | Failed:
    """Return the outcome of an item, sent again while the machine is too busy for it."""
    async with asyncio.timeout(WAIT_LIMIT):
        while True:
            (outcome,) = await backend.ask("own", Task.INFER, [item])
            if isinstance(outcome, Done) or not outcome.retryable:
                return outcome
            await asyncio.sleep(outcome.retry_after or 0.0)


async def test_a_process_without_a_core_is_starved_and_no_item_is_refused(tmp_path: Path) -> None:
    models, held = own(tmp_path, time=0.2), tmp_path / "held"
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        host = await backend.answer("own", Task.INFER, 0.0)
        held.touch()
        with without_a_core(host):
            (first,) = await backend.ask("own", Task.INFER, [str(held)])
        held.unlink()
        second = await ask_until_it_counts(backend, str(held))

    assert isinstance(first, Failed)
    assert (first.status, first.code, first.retryable) == (503, "overloaded", True)
    assert "core" in first.detail
    assert isinstance(second, Done), second


@pytest.mark.parametrize("name", ["regex", "loop"])
async def test_an_item_that_computes_for_ever_is_refused_where_it_has_a_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    give_a_core(monkeypatch)
    models = write_own(
        write_repository(tmp_path / "models"), HEAD + f"    {HARM[name]}\n", options={"time": TIME}
    )
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        outcomes = [
            outcome
            for _ in range(2)  # the second one is not even begun
            for outcome in await backend.ask("own", Task.INFER, ["harm"])
        ]

    for outcome in outcomes:
        assert isinstance(outcome, Failed), outcome
        assert (outcome.status, outcome.code, outcome.retryable) == (422, "algorithm_killed", False)


async def test_an_item_has_its_time_although_others_have_the_cores(tmp_path: Path) -> None:
    """By the clock it takes several times as long."""
    models = own(tmp_path, time=0.5)
    async with running_backend(models, DummyExecutor(dimensions=DIMENSIONS)) as backend:
        host = await backend.answer("own", Task.INFER, 0.0)
        with without_a_core(host):
            (outcome,) = await backend.ask("own", Task.INFER, [0.02])

    assert isinstance(outcome, Done) or outcome.retryable, outcome


async def test_the_time_of_the_models_it_asks_is_not_an_items(tmp_path: Path) -> None:
    text = 'async def run(item, ask):\n    await ask("mood", [item])\n    return item\n'
    models = write_own(write_repository(tmp_path / "models"), text, options={"time": TIME})
    is_late = threading.Event()
    executor = PacedExecutor(lambda *_: _wait(is_late), dimensions=DIMENSIONS)
    async with running_backend(models, executor) as backend:
        asyncio.get_running_loop().call_later(3 * TIME, is_late.set)
        (outcome,) = await backend.ask("own", Task.INFER, ["good film"])

    assert isinstance(outcome, Done), outcome


def _wait(event: threading.Event) -> None:
    assert event.wait(60.0)
