"""Sessions are closed when memory is short and nobody uses them, and opened again when asked."""

import gc
import threading
from collections import Counter

import numpy as np
import pytest

from sluicegate.backends.errors import ExecutorDied, ModelProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.dummy import DummyExecutor, PacedExecutor
from sluicegate.backends.executors.padded_batch import ones
from sluicegate.backends.executors.resident import ResidentExecutor, SessionMemory
from sluicegate.backends.types import FloatArray, OutputKind
from testing.waiting import wait_until
from tests.support.gate import Gate


class Shelf:
    """Models of one byte each, and how often each was opened."""

    def __init__(self, *, room: int) -> None:
        self.memory = SessionMemory(max_bytes=room)
        self.opened: Counter[str] = Counter()
        self.gone: set[str] = set()

    def model(self, name: str, executor: ModelExecutor | None = None) -> ResidentExecutor:
        def open_executor() -> ModelExecutor:
            if name in self.gone:
                raise ModelProblem("there is no such file")
            self.opened[name] += 1
            return executor or DummyExecutor()

        return ResidentExecutor(open_executor, name=name, size_bytes=1, memory=self.memory)


def run(executor: ModelExecutor) -> FloatArray:
    return executor.run(ones(1, 3, OutputKind.POOLED))


def test_the_session_used_longest_ago_makes_room() -> None:
    shelf = Shelf(room=2)
    first, second = shelf.model("first"), shelf.model("second")
    run(first)

    third = shelf.model("third")

    assert [each.is_open for each in (first, second, third)] == [True, False, True]
    assert shelf.memory.size_bytes == 2


def test_a_closed_session_opens_again_and_answers_as_before() -> None:
    shelf = Shelf(room=1)
    first = shelf.model("first")
    before = run(first)
    second = shelf.model("second")

    after = run(first)

    assert np.array_equal(before, after)
    assert shelf.opened == {"first": 2, "second": 1}
    assert not second.is_open


def test_a_session_in_use_is_not_closed() -> None:
    shelf, gate = Shelf(room=1), Gate()
    busy = shelf.model("busy", PacedExecutor(gate))
    thread = threading.Thread(target=run, args=(busy,))
    thread.start()
    wait_until(lambda: gate.arrived == 1)

    other = shelf.model("other")

    was_open = busy.is_open and other.is_open
    gate.open()
    thread.join()
    assert was_open
    assert shelf.memory.size_bytes == 2


def test_a_session_that_cannot_be_opened_again_has_died() -> None:
    shelf = Shelf(room=1)
    first = shelf.model("first")
    shelf.model("second")
    shelf.gone.add("first")

    with pytest.raises(ExecutorDied):
        run(first)


def test_a_model_that_was_let_go_of_takes_no_memory() -> None:
    shelf = Shelf(room=2)
    for name in "abcdef":
        run(shelf.model(name))
    gc.collect()

    assert shelf.memory.size_bytes == 0
