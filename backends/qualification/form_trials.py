"""Tries forms of a graph, in this process or in a child that a broken form may end.

A kernel that reads an illegal address breaks the device for its whole process: no later run of any
form succeeds there.
"""

import gc
import logging
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec

from backends.errors import BackendError, ExecutorDied, ModelFailed, OutOfMemory, StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel
from backends.executors.graph import GraphSource
from backends.executors.opening import executor_opener
from backends.executors.padded_batch import PaddedBatch
from backends.gpus import GPU_PROVIDERS
from backends.settings import BackendSettings, Provider
from backends.types import FloatArray

# Seconds for one form. TensorRT builds engines in minutes; CUDA may compile its kernels for a card
# that is newer than they are.
_PATIENCE: Mapping[Provider, float] = MappingProxyType({"cuda": 300.0, "tensorrt": 1800.0})
# Seconds in which a process ends whose pipe is closed.
_ENDING = 10.0
# Who ends a process in this way, as the kernel does for want of memory, says nothing of its form.
_KILLED = (-signal.SIGKILL, -signal.SIGTERM)
OpenExecutor = Callable[[GraphSource], ModelExecutor]


class FormTrial(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds what a form answered to each batch, and its cost."""

    outputs: list[FloatArray]
    cost: CostModel


TryForm = Callable[[GraphSource, Sequence[PaddedBatch]], FormTrial]
"""Runs batches through a form; raises `BackendError` or `StartProblem` where it cannot run."""


def trying(open_executor: OpenExecutor) -> TryForm:
    """Return what tries forms in this process."""

    def try_form(source: GraphSource, batches: Sequence[PaddedBatch]) -> FormTrial:
        executor = open_executor(source)
        outputs = [executor.run(batch) for batch in batches]
        return FormTrial(outputs=outputs, cost=executor.cost)

    return try_form


class ChildTrials:
    """Tries forms in a child process, which starts with the first and is replaced when it ends.

    `make_opener` is called in the child, so it must be one that can be pickled. A form that takes
    more than `patience` seconds hangs.
    """

    def __init__(self, make_opener: Callable[[], OpenExecutor], *, patience: float) -> None:
        self._make_opener = make_opener
        self.patience = patience
        self._child: tuple[multiprocessing.process.BaseProcess, Connection] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def __call__(self, source: GraphSource, batches: Sequence[PaddedBatch]) -> FormTrial:
        """Try a form as `TryForm` does; it is `OutOfMemory` too where the child was killed."""
        process, connection = self._start()
        try:
            connection.send((source, batches))
            answer = connection.recv() if connection.poll(self.patience) else None
        except (EOFError, OSError):
            process.join(_ENDING)
            self._end()
            if process.exitcode in _KILLED:
                raise OutOfMemory(
                    "the process that tried the form was killed, perhaps for want of memory"
                ) from None
            raise ModelFailed("the process that tried the form ended") from None
        if answer is None:
            self._end()
            raise ModelFailed(f"the form has not answered for {self.patience:g} s")
        if isinstance(answer, FormTrial):
            return answer
        if isinstance(answer, ExecutorDied):
            self._end()
        raise answer

    def _start(self) -> tuple[multiprocessing.process.BaseProcess, Connection]:
        if self._child is None:
            # A fork would share what CUDA has in this process, which it forbids.
            context = multiprocessing.get_context("spawn")
            connection, other = context.Pipe()
            process = context.Process(target=_serve, args=(other, self._make_opener), daemon=True)
            process.start()
            other.close()
            self._child = process, connection
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            process, connection = self._child
            self._child = None
            connection.close()
            process.kill()
            process.join()


def form_trials(
    settings: BackendSettings,
) -> Callable[[], AbstractContextManager[TryForm | None]]:
    """Return what makes trials of forms: of those for GPUs in a child process."""
    if settings.provider not in GPU_PROVIDERS:
        return nullcontext
    opener = partial(executor_opener, settings)
    return partial(ChildTrials, opener, patience=_PATIENCE[settings.provider])


def _serve(connection: Connection, make_opener: Callable[[], OpenExecutor]) -> None:
    """Try what arrives until the parent ends."""
    # The parent logs what came of it, and ends this process.
    logging.getLogger().addHandler(logging.NullHandler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try_form = trying(make_opener())
    while True:
        try:
            source, batches = connection.recv()
        except EOFError:
            return
        answer: FormTrial | Exception
        try:
            answer = try_form(source, batches)
        except (BackendError, StartProblem) as error:
            # Its cause may be an error of a library that cannot be pickled.
            answer = error.with_traceback(None)
            answer.__cause__ = answer.__context__ = None
            # Errors hold the sessions that were opened, and they hold the device's memory.
            gc.collect()
        connection.send(answer)
