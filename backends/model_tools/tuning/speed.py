"""Tunes the batching of an encoder's rows on this machine, and reports it."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from backends.batching.shared import RowCaller
from backends.errors import StartProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.opening import executor_opener
from backends.model_tools.tuning.sweep import (
    BATCH_SIZES,
    CLIENTS,
    Point,
    choose,
    default_texts,
    sweep_batches,
    sweep_clients,
    thread_counts,
)
from backends.model_tools.tuning.tuned_model import find_model
from backends.pipelines.ask import Pipeline
from backends.qualification.qualify import Candidate, qualify
from backends.qualification.tuned import TunedBatching, write_tuned
from backends.repository.catalogue import Catalogue, read_catalogue
from backends.repository.manifest import EncoderManifest, HeadManifest
from backends.repository.model import Model
from backends.serving.loading import LoadingTools, load_models, make_shared
from backends.settings import BackendSettings
from backends.telemetry.spans import NO_TRACING
from backends.tokenization.tokenizer import Tokenizer

_DEADLINE = 60.0


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all measurements, and the best of them."""

    encoder: str
    shares_batches: bool
    batches: list[Point]
    clients: list[Point]
    best: Point


def tune_speed(
    settings: BackendSettings, name: str, *, texts: Sequence[str] | None, seconds: float
) -> Sweep:
    """Measure the encoder of a model, each setting for `seconds`.

    Raises:
        StartProblem: the model is not there or cannot be loaded.
    """
    model = find_encoder(read_catalogue(settings.models), name)
    return asyncio.run(_tune(settings, model, texts or default_texts(), seconds))


def find_encoder(catalogue: Catalogue, name: str) -> Model:
    """Return the encoder that a model's rows go through.

    Raises:
        StartProblem: it has none of its own.
    """
    model = find_model(catalogue, name)
    if isinstance(model.manifest, HeadManifest):
        return find_model(catalogue, model.manifest.encoder)
    if not isinstance(model.manifest, EncoderManifest):
        raise StartProblem(f"`{name}` has no encoder of its own; tune those it builds on")
    return model


def keep(settings: BackendSettings, sweep: Sweep) -> bool:
    """Write the best setting beside the model; backends of this kind of machine read it."""
    model = find_encoder(read_catalogue(settings.models), sweep.encoder)
    tuned = TunedBatching(rows=sweep.best.batch_size, threads=sweep.best.threads)
    provider = "CUDAExecutionProvider" if settings.provider == "cuda" else "CPUExecutionProvider"
    return write_tuned(model.folder, tuned, digest=model.digest, provider=provider)


class _TuningSession:
    """Serves one encoder, its graph opened once, with different settings."""

    def __init__(self, settings: BackendSettings, model: Model, pool: ThreadPoolExecutor) -> None:
        self._settings = settings
        self._model = model
        self._pool = pool
        self._executor: ModelExecutor | None = None
        self.shares_batches = True

    @asynccontextmanager
    async def serve(self, rows: int, *, threads: int) -> AsyncIterator[Pipeline]:
        """Serve the encoder in batches of `rows` rows in `threads` threads, without a row cache."""
        settings = msgspec.structs.replace(
            self._settings, max_batch_rows=rows, threads=threads, row_cache_bytes=0
        )
        tools = LoadingTools(
            settings=settings,
            tracing=NO_TRACING,
            clock=time.monotonic,
            tokenizer_pool=self._pool,
            open_executor=self.open,
            qualify=self._qualify,
        )
        catalogue = Catalogue(models={self._model.name: self._model}, problems={})
        model_set = load_models(catalogue, tools, make_shared(tools))
        if model_set.problems:
            raise StartProblem(model_set.problems[self._model.name])
        async with AsyncExitStack() as stack:
            for encoder in model_set.encoders:
                await stack.enter_async_context(encoder.batcher)
            yield model_set.pipelines[self._model.name]

    def open(self, source: GraphSource) -> ModelExecutor:
        """Open the graph, the first time."""
        if self._executor is None:
            self._executor = executor_opener(self._settings)(source)
        return self._executor

    @property
    def executor(self) -> ModelExecutor:
        """What runs the graph, once it was served."""
        if self._executor is None:
            raise StartProblem(f"`{self._model.name}` was not opened")
        return self._executor

    def _qualify(self, candidate: Candidate) -> bool:
        self.shares_batches = qualify(candidate)
        return self.shares_batches


async def _tune(
    settings: BackendSettings, model: Model, texts: Sequence[str], seconds: float
) -> Sweep:
    manifest = model.manifest
    if not isinstance(manifest, EncoderManifest) or manifest.outputs.pooled is None:
        raise StartProblem(f"`{model.name}` has no pooled output to measure")
    with ThreadPoolExecutor(settings.tokenizer_threads) as pool:
        tokenizer = Tokenizer(model.file(manifest.tokenizer), pool=pool)
        encoded = zip(texts, tokenizer.encode_now(texts), strict=True)
        fitting = [(text, e.ids) for text, e in encoded if len(e.ids) <= manifest.max_tokens]
        if not fitting:
            raise StartProblem(f"every text is longer than `{model.name}` reads")
        session = _TuningSession(settings, model, pool)
        async with session.serve(1, threads=settings.worker_threads):
            batches = sweep_batches(
                session.executor,
                [ids for _, ids in fitting],
                sizes=BATCH_SIZES if session.shares_batches else (1,),
                threads=thread_counts(settings.worker_threads),
                seconds=seconds,
            )
        best = choose(batches)
        async with session.serve(best.batch_size, threads=best.threads) as pipeline:

            async def ask(text: str, client: int) -> object:
                deadline = time.monotonic() + _DEADLINE
                # A scope of its own: clients that ask the same are not to be answered together.
                return await pipeline.vectors(
                    [text], RowCaller(scope=f"client-{client}", deadline=deadline)
                )

            clients = await sweep_clients(
                ask, [text for text, _ in fitting], clients=CLIENTS, best=best, seconds=seconds
            )
    return Sweep(
        encoder=model.name,
        shares_batches=session.shares_batches,
        batches=batches,
        clients=clients,
        best=best,
    )
