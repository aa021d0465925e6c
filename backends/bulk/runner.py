"""Runs items through one model of a repository in this process, for synchronous callers."""

import asyncio
import itertools
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from sluicegate.backends.algorithms.base import Algorithm, QueryAlgorithm
from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.batching.fair_queue import BULK
from sluicegate.backends.bulk.planned_rows import (
    ROUNDS,
    PartTextQueue,
    PlannedRows,
    RowRounds,
    count_rows,
)
from sluicegate.backends.errors import (
    BackendError,
    ItemRefused,
    ModelFailed,
    ModelProblem,
    OutOfMemory,
    StartProblem,
)
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.open_inference.address import servers
from sluicegate.backends.pipelines.ask import AlgorithmContext, encode_result
from sluicegate.backends.pipelines.encoder import PreparedQuery
from sluicegate.backends.qualification.graph_trials import graph_trials
from sluicegate.backends.qualification.qualify import qualify
from sluicegate.backends.repository.catalogue import Catalogue, read_catalogue
from sluicegate.backends.repository.manifest import builds_on
from sluicegate.backends.serving.core import ModelSet
from sluicegate.backends.serving.loading import LoadingTools, load_models, make_shared
from sluicegate.backends.settings import BackendSettings, quiet_libraries, read_settings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.tokenization.tokenizer import Texts, Tokenizer
from sluicegate.backends.types import Encoding, OutputKind
from sluicegate.wire.protocol import ITEMS, PARAMETERS, Parameters, Task, takes_text

_SCOPE = "bulk"
# The first text to run. With it, algorithms compute and cache vectors of the parameters, such as
# labels, in a batch that does not depend on the caller's texts.
_FIRST_TEXT = "warm-up"
# No item takes this long, but algorithm hosts need a finite time.
_LONGEST = 3600.0
# The texts of this many items are tokenized at a time.
_READ_AT_ONCE = 256
_Answer = TypeVar("_Answer")


class BulkResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Holds an item's result: a JSON value that may contain numpy arrays instead of lists."""

    value: Any
    rows: int = 0
    tokens: int = 0
    truncated_from: int = 0

    def as_json(self) -> bytes:
        """Return the result as JSON, as the gateway sends it."""
        return encode_result(self.value)


class BulkFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Tells why an item has no result."""

    code: str
    detail: str


Outcome = BulkResult | BulkFailure


class _OpenQuery(msgspec.Struct, frozen=True, eq=False):
    """Holds an item in progress whose algorithm is a `QueryAlgorithm`."""

    index: int
    caller: RowCaller
    prepared: PreparedQuery


class BulkRunner:
    """Answers items of one task with one model, without HTTP, queues or deadlines.

    The caller needs no event loop. Any thread may call `run`. Two concurrent calls keep a device
    busy, because one call tokenizes while the other call uses the device. Calls with equal items
    return bit-identical results. `settings` override the environment (`SLUICEGATE_BACKEND_...`).
    """

    def __init__(
        self,
        models: Path | None = None,
        *,
        model: str,
        task: str,
        parameters: Mapping[str, Any] | None = None,
        truncate: bool = True,
        **settings: object,
    ) -> None:
        """Load the model and the models that it builds on.

        Raises:
            StartProblem: the repository does not have the model, the model does not have the task,
                the parameters are invalid, or the model cannot be loaded.
        """
        quiet_libraries()
        self._truncate = truncate
        self.parameters = _read_parameters(task, parameters or {})
        self.task = Task(task)
        self._stack = ExitStack()
        chosen = {
            "models": models,
            "wide": "never",
            "traces": False,
            "model_memory_bytes": 0,
        } | settings
        self.settings = read_settings(None, **chosen)
        try:
            self._load(self.settings, model)
            self._loop = self._stack.enter_context(_LoopThread())
            self._warm_up()
        except BaseException:  # after any error, threads and processes must end
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End all threads and processes."""
        self._stack.close()

    def run(self, items: Sequence[Any]) -> list[Outcome]:
        """Return the outcome of each item; `protocol.ITEMS` gives the type of items.

        Raises:
            BackendError: the model cannot run any more, or a failure may be temporary.
        """
        query = self._algorithm.as_query
        if query is not None:
            return self._run_queries(items, query)
        return self._loop.call(self._answer_all(items))

    def _load(self, settings: BackendSettings, name: str) -> None:
        catalogue = _needed_for(name, read_catalogue(settings.models, servers(settings)))
        self._tokenizers = pool = self._stack.enter_context(
            ThreadPoolExecutor(settings.tokenizer_threads, thread_name_prefix="tokenizer")
        )
        tools = LoadingTools(
            settings=settings,
            tracing=NO_TRACING,
            clock=time.monotonic,
            tokenizer_pool=pool,
            open_executor=executor_opener(settings),
            qualify=qualify,
            graph_trials=graph_trials(settings),
        )
        shared = make_shared(tools)
        self._stack.callback(shared.hosts.close)
        found = load_models(catalogue, tools, shared)
        if name in found.problems:
            raise ModelProblem(f"model `{name}` is broken: {found.problems[name]}")
        served_model = found.served_models[name]
        algorithm = served_model.find(self.task)
        if algorithm is None:
            tasks = ", ".join(f"`{task}`" for task in served_model.info.tasks) or "none"
            raise StartProblem(f"model `{name}` has no task `{self.task}`; it has {tasks}")
        self.info = served_model.info
        self._algorithm: Algorithm = algorithm
        self._pipelines = found.pipelines
        # Empty if the task only needs the tokenizer.
        self.provider = ", ".join(sorted({each.batcher.provider for each in found.all_encoders()}))
        limits = {
            (each.batcher.limits.rows, each.batcher.limits.tokens) for each in found.all_encoders()
        }
        batches = ", ".join(f"{rows} rows, {tokens} tokens" for rows, tokens in sorted(limits))
        self.execution = f"{self.provider}; batches of {batches}" if limits else "tokens"
        self._plan_rows(found, pool)

    def _plan_rows(self, found: ModelSet, tokenizer_pool: ThreadPoolExecutor) -> None:
        """Make encoders run planned batches, in as many threads as the executor supports."""
        threads = max((each.batcher.worker_threads for each in found.all_encoders()), default=1)
        workers = self._stack.enter_context(
            ThreadPoolExecutor(threads, thread_name_prefix="bulk-rows")
        )
        texts = PartTextQueue(tokenizer_pool)
        for each in found.all_encoders():
            each.pipeline.tokenizer.read_by(texts)
            each.pipeline.rows = PlannedRows(
                digest=each.digest, cache=each.rows.cache, batcher=each.batcher, pool=workers
            )

    def _warm_up(self) -> None:
        if ITEMS[self.task] is str or self.task in {Task.CLASSIFY, Task.EMBED}:
            self.run([_FIRST_TEXT])

    def _run_queries(self, items: Sequence[Any], algorithm: QueryAlgorithm) -> list[Outcome]:
        """Answer items with a `QueryAlgorithm`, without a coroutine per item."""
        outcomes: list[Outcome | None] = [None] * len(items)
        pipeline = self._pipelines[algorithm.model]
        encoder, rows = pipeline.encoder, pipeline.encoder.rows
        opened = self._open(items, algorithm, outcomes)
        groups = [item.prepared.texts for item in opened]
        checked: list[tuple[_OpenQuery, Sequence[Encoding]]] = []
        for item, found in zip(opened, self._encode_each(encoder.tokenizer, groups), strict=True):
            try:
                if isinstance(found, BackendError):
                    raise found
                rows_of_item = encoder.check(item.prepared, found, item.caller)
            except BackendError as error:
                outcomes[item.index] = _failure(error)
            else:
                checked.append((item, rows_of_item))
        assert isinstance(rows, PlannedRows)  # noqa: S101 - `_plan_rows` put it there
        all_encodings = [encoding for _, encodings in checked for encoding in encodings]
        values = iter(rows.batches.run(all_encodings, OutputKind.POOLED))
        for item, encodings in checked:
            own = [next(values) for _ in encodings]
            try:
                vectors = pipeline.finish(count_rows(own, encodings, item.caller))
                answer = algorithm.answer(vectors, self.parameters)
            except BackendError as error:
                outcomes[item.index] = _failure(error)
            else:
                outcomes[item.index] = _result(answer, item.caller)
        return [outcome for outcome in outcomes if outcome is not None]

    def _encode_each(
        self, tokenizer: Tokenizer, groups: Sequence[Texts]
    ) -> Iterator[list[Encoding] | BackendError]:
        """Tokenize each item's texts, in several threads unless they would wait for the GIL."""
        slices = [
            groups[start : start + _READ_AT_ONCE] for start in range(0, len(groups), _READ_AT_ONCE)
        ]
        read = map if tokenizer.has_word_table else self._tokenizers.map
        return itertools.chain.from_iterable(read(tokenizer.encode_short, slices))

    def _open(
        self, items: Sequence[Any], algorithm: QueryAlgorithm, outcomes: list[Outcome | None]
    ) -> list[_OpenQuery]:
        """Return the valid items with their texts; add refused items to `outcomes`."""
        encoder = self._pipelines[algorithm.model].encoder
        opened = []
        for index, item in enumerate(items):
            try:
                texts = algorithm.texts(self._read(item), self.parameters)
                prepared = encoder.prepare(texts, algorithm.prompts(self.parameters))
            except BackendError as error:
                outcomes[index] = _failure(error)
            else:
                opened.append(_OpenQuery(index, self._caller(), prepared))
        return opened

    async def _answer_all(self, items: Sequence[Any]) -> list[Outcome]:
        ROUNDS.set(RowRounds())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._answer(item)) for item in items]
        return [task.result() for task in tasks]

    async def _answer(self, item: Any) -> Outcome:
        caller = self._caller()
        try:
            ask = AlgorithmContext(self._pipelines, caller)
            answer = await self._algorithm.run(self._read(item), self.parameters, ask)
        except BackendError as error:
            return _failure(error)
        return _result(answer, caller)

    def _read(self, item: Any) -> Any:
        if type(item) is str and self.task is not Task.INFER:
            return self._read_text(item)
        try:
            return msgspec.convert(item, ITEMS[self.task])
        except msgspec.ValidationError as error:
            raise ItemRefused("bad_item", f"the item is not valid for its task: {error}") from None

    def _read_text(self, text: str) -> str:
        if not takes_text(self.task):
            raise ItemRefused("bad_item", "the item is a text, which this task does not take")
        return text

    def _caller(self) -> RowCaller:
        return RowCaller(
            scope=_SCOPE,
            deadline=time.monotonic() + _LONGEST,
            lane=BULK,
            truncate=self._truncate,
        )


def _read_parameters(task: str, given: Mapping[str, Any]) -> Parameters:
    kinds = {str(each): kind for each, kind in PARAMETERS.items()}
    if task not in kinds:
        tasks = ", ".join(f"`{each}`" for each in kinds)
        raise StartProblem(f"the task `{task}` is unknown; use one of {tasks}")
    try:
        return msgspec.convert(dict(given), kinds[task])
    except msgspec.ValidationError as error:
        raise StartProblem(f"invalid parameters for the task `{task}`: {error}") from None


def _needed_for(name: str, catalogue: Catalogue) -> Catalogue:
    """Return a catalogue of one model and all models below it, without shadow revisions.

    Raises:
        StartProblem: the repository does not have the model, or the model is broken.
    """
    if name in catalogue.problems:
        raise ModelProblem(f"model `{name}` is broken: {catalogue.problems[name]}")
    if name not in catalogue.models:
        known = ", ".join(f"`{each}`" for each in catalogue.models) or "none"
        raise StartProblem(f"the repository has no model `{name}`; it has {known}")
    needed, waiting = {name}, [name]
    while waiting:
        below = set(builds_on(catalogue.models[waiting.pop()].manifest)) - needed
        needed |= below
        waiting += below
    models = {
        each: msgspec.structs.replace(model, serving=None)
        for each, model in catalogue.models.items()
        if each in needed
    }
    return Catalogue(models=models, problems={}, upstreams=catalogue.upstreams)


def _failure(error: BackendError) -> BulkFailure:
    """Return the outcome of an item that failed with `error`, if a retry would fail, too.

    Raises:
        BackendError: the error may be temporary, so a retry may succeed.
    """
    is_of_item = isinstance(error, ModelFailed) and not isinstance(error, OutOfMemory)
    if error.retryable and not is_of_item:
        raise error
    return BulkFailure(code=error.code, detail=str(error))


def _result(answer: Any, caller: RowCaller) -> BulkResult:
    return BulkResult(
        value=answer,
        rows=caller.rows,
        tokens=caller.tokens,
        truncated_from=caller.truncated_from,
    )


class _LoopThread:
    """Runs an event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="bulk-loop", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
        """Run a coroutine in the loop and return its result; blocks the calling thread."""
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
