"""Tunes the batching of a model on this machine."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from sluicegate.backends.batching.coalescing import RowCaller
from sluicegate.backends.device_defaults import batch_tokens
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.executors.pooling import PoolingExecutor
from sluicegate.backends.model_tools.tuning.sweep import (
    CLIENTS,
    Point,
    batch_sizes,
    choose,
    sweep_batches,
    sweep_clients,
    thread_counts,
)
from sluicegate.backends.model_tools.tuning.tuned_model import find_graph_model, open_tokenizer
from sluicegate.backends.pipelines.ask import Pipeline
from sluicegate.backends.qualification.golden_texts import GoldenSet, default_texts
from sluicegate.backends.qualification.graph_trials import graph_trials
from sluicegate.backends.qualification.measures import kind_of
from sluicegate.backends.qualification.qualify import Candidate, qualify
from sluicegate.backends.qualification.records import MachineInfo, describe_machine
from sluicegate.backends.qualification.tuned import TunedBatching, write_tuned
from sluicegate.backends.repository.catalogue import Catalogue, read_catalogue
from sluicegate.backends.repository.manifest import EncoderManifest, GraphManifest
from sluicegate.backends.repository.model import Model
from sluicegate.backends.serving.loading import LoadingTools, graph_source, load_models, make_shared
from sluicegate.backends.settings import BackendSettings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.backends.types import Encoding, OutputKind, Text

_DEADLINE = 60.0


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all measurements of the graph of `model`, the best setting, and the machine.

    `folder` and `digest` identify the measured revision.
    """

    model: str
    folder: Path
    digest: str
    provider: str
    machine: MachineInfo
    shares_batches: bool
    batches: list[Point]
    clients: list[Point]
    best: Point


def tune_speed(
    settings: BackendSettings, name: str, *, texts: Sequence[Text] | None, seconds: float
) -> Sweep:
    """Measure a model's graph with several batch sizes, and numbers of threads and clients.

    Each measurement takes `seconds`.

    Raises:
        StartProblem: the model does not exist, cannot be loaded, or builds on several graphs.
    """
    model = find_graph_model(read_catalogue(settings.models), name)
    return asyncio.run(_tune(settings, model, texts, seconds))


def keep(sweep: Sweep) -> bool:
    """Record the best setting in the measured revision's folder, for this kind of machine.

    Return `False` if the folder cannot be written.
    """
    tuned = TunedBatching(rows=sweep.best.batch_size, threads=sweep.best.threads)
    return write_tuned(sweep.folder, tuned, digest=sweep.digest, provider=sweep.provider)


class _TuningSession:
    """Serves one model with different settings; its graph is opened only once."""

    def __init__(self, settings: BackendSettings, model: Model, pool: ThreadPoolExecutor) -> None:
        self._settings = settings
        self._model = model
        self._pool = pool
        self._executors: dict[tuple[Path, str], ModelExecutor] = {}
        self._executor: ModelExecutor | None = None
        self.shares_batches = True

    @asynccontextmanager
    async def serve(self, rows: int, *, threads: int) -> AsyncIterator[Pipeline]:
        """Serve the model in batches of `rows` rows with `threads` threads, without a row cache."""
        settings = msgspec.structs.replace(
            self._settings,
            max_batch_rows=rows,
            threads=threads,
            row_cache_bytes=0,
            model_memory_bytes=0,
        )
        tools = LoadingTools(
            settings=settings,
            tracing=NO_TRACING,
            clock=time.monotonic,
            tokenizer_pool=self._pool,
            open_executor=self.open,
            qualify=self._qualify,
            graph_trials=graph_trials(settings),
        )
        catalogue = Catalogue(models={self._model.name: self._model}, problems={})
        model_set = load_models(catalogue, tools, make_shared(tools))
        if model_set.problems:
            raise StartProblem(model_set.problems[self._model.name])
        async with AsyncExitStack() as stack:
            for encoder in model_set.all_encoders():
                await stack.enter_async_context(encoder.batcher)
            yield model_set.pipelines[self._model.name]

    def open(self, source: GraphSource) -> ModelExecutor:
        """Return a device graph's executor; open the graph if needed.

        Later measurements use the graph that was opened last.
        """
        key = (source.path, source.precision)
        if key not in self._executors:
            self._executors[key] = executor_opener(self._settings)(source)
        self._executor = self._executors[key]
        return self._executor

    @property
    def executor(self) -> ModelExecutor:
        """The executor of the graph; available after `serve`."""
        if self._executor is None:
            raise StartProblem(f"`{self._model.name}` was not opened")
        manifest = self._model.manifest
        if isinstance(manifest, EncoderManifest) and manifest.pooling is not None:
            return PoolingExecutor(self._executor, manifest.pooling)
        return self._executor

    def _qualify(self, candidate: Candidate) -> bool:
        self.shares_batches = qualify(candidate)
        return self.shares_batches


async def _tune(
    settings: BackendSettings, model: Model, given: Sequence[Text] | None, seconds: float
) -> Sweep:
    manifest = model.manifest
    if not isinstance(manifest, GraphManifest):
        raise StartProblem(f"`{model.name}` has no graph of its own")
    output = _output(model, manifest)
    with ThreadPoolExecutor(settings.tokenizer_threads) as pool:
        fitting = _fitting(model, manifest, given)
        session = _TuningSession(settings, model, pool)
        async with session.serve(1, threads=settings.worker_threads):
            executor, rows = session.executor, [row for _, row in fitting]
            sizes = batch_sizes(executor.provider, rows, max_tokens=batch_tokens(settings))
            batches = sweep_batches(
                executor,
                rows,
                output=output,
                sizes=sizes if session.shares_batches else [1],
                threads=thread_counts(executor.worker_threads),
                seconds=seconds,
            )
        best = choose(batches)
        async with session.serve(best.batch_size, threads=best.threads) as pipeline:

            async def send(text: Text, client: int) -> object:
                deadline = time.monotonic() + _DEADLINE
                # Each client has its own scope, so that the backend computes equal texts
                # separately.
                caller = RowCaller(scope=f"client-{client}", deadline=deadline)
                if output is OutputKind.TOKENS and isinstance(text, str):
                    return await pipeline.token_vectors(text, caller)
                return await pipeline.vectors([text], caller)

            texts = [text for text, _ in fitting]
            clients = await sweep_clients(send, texts, clients=CLIENTS, best=best, seconds=seconds)
    return Sweep(
        model=model.name,
        folder=model.folder,
        digest=model.digest,
        provider=executor.provider,
        machine=describe_machine(),
        shares_batches=session.shares_batches,
        batches=batches,
        clients=clients,
        best=best,
    )


def _output(model: Model, manifest: GraphManifest) -> OutputKind:
    """Return the graph output from which most requests are answered."""
    if isinstance(manifest, EncoderManifest) and manifest.pooling is not None:
        return OutputKind.POOLED
    return graph_source(model, manifest).first_output


def _fitting(
    model: Model, manifest: GraphManifest, given: Sequence[Text] | None
) -> list[tuple[Text, Encoding]]:
    """Return the texts that fit the model, with their rows.

    Raises:
        StartProblem: no text fits.
    """
    measure, reads_pairs = kind_of(manifest)
    texts = list(given if given is not None else default_texts())
    texts = GoldenSet(texts=texts).suited_to(measure, reads_pairs=reads_pairs).texts
    truncate_to = manifest.max_tokens if manifest.truncate else None
    encoded = open_tokenizer(model, manifest, truncate_to=truncate_to).encode_now(texts)
    fitting = [
        (text, row)
        for text, row in zip(texts, encoded, strict=True)
        if len(row.ids) <= manifest.max_tokens
    ]
    if not fitting:
        raise StartProblem(f"every text is too long for `{model.name}`; use shorter texts")
    return fitting
