"""Measures tokenizer, batcher and executor in this process, without HTTP."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from backends.batching.shared import RowCaller
from backends.executors.opening import executor_opener
from backends.qualification.qualify import qualify_unmeasured
from backends.repository.catalogue import read_catalogue
from backends.serving.core import ModelSet
from backends.serving.loading import LoadingTools, load_models, make_shared
from backends.settings import BackendSettings, quiet_libraries
from backends.telemetry.spans import NO_TRACING
from loadtests.generator import percentile
from loadtests.gpu.models import chosen_form, import_classifier, texts
from loadtests.gpu.plan import (
    BATCH_TOKENS,
    FULL_BATCH,
    IN_FLIGHT_TEXTS,
    LARGE,
    SMALL,
    Figure,
    Options,
)
from loadtests.gpu.results import Journal, Measurement, SectionState
from loadtests.gpu.timing import busy_share

_TIMEOUT = 60.0


def run(options: Options, section: str) -> SectionState:
    """Ask for single texts from many tasks at once, with one, two and three runs in flight."""
    models = import_classifier(options, SMALL)
    return Journal(options.output).measure(
        section, lambda figure: asyncio.run(_measure(options, figure, models))
    )


def _settings(options: Options, figure: Figure, models: Path) -> BackendSettings:
    """Return the settings of a backend with full batches and without a row cache."""
    batch = options.batch(msgspec.structs.replace(figure, items=FULL_BATCH))
    tokens = max(batch.tokens, BATCH_TOKENS)
    return BackendSettings(
        models=models,
        provider=options.provider,
        threads=1,
        tokenizer_threads=4,
        max_batch_rows=batch.rows,
        max_batch_tokens=tokens,
        max_queue_rows=32 * batch.rows,
        max_queue_tokens=32 * tokens,
        row_cache_bytes=0,
        gpu_runs=int(figure.way),
    )


async def _measure(options: Options, figure: Figure, models: Path) -> Measurement:
    quiet_libraries()
    settings = _settings(options, figure, models)
    async with AsyncExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(settings.tokenizer_threads))
        tools = LoadingTools(
            settings=settings,
            tracing=NO_TRACING,
            clock=time.monotonic,
            tokenizer_pool=pool,
            open_executor=executor_opener(settings),
            qualify=qualify_unmeasured,
        )
        loaded = load_models(read_catalogue(settings.models), tools, make_shared(tools))
        if loaded.problems:
            return Measurement(passed=False, note="; ".join(loaded.problems.values()))
        for encoder in loaded.encoders:
            await stack.enter_async_context(encoder.batcher)
        found = await _load(options, loaded, options.batch(figure).length)
    return msgspec.structs.replace(found, note=f"{found.note}, {chosen_form(models)}")


async def _load(options: Options, loaded: ModelSet, length: int) -> Measurement:
    source = texts(options.shape(LARGE).vocab, length=length, seed=8)
    tasks = 8 if options.tiny else IN_FLIGHT_TEXTS
    await _ask(loaded, source, tasks, seconds=options.seconds / 4)
    before = loaded.encoders[0].batcher.statistics()
    started = time.perf_counter()
    with busy_share() as busy:
        latencies = await _ask(loaded, source, tasks, seconds=options.seconds)
    took = time.perf_counter() - started
    after = loaded.encoders[0].batcher.statistics()
    tokens, padded = after.tokens - before.tokens, after.padded_tokens - before.padded_tokens
    rows = (after.rows - before.rows) / max(1, after.batches - before.batches)
    return Measurement(
        rate=len(latencies) / took,
        tokens_per_second=tokens / took,
        busy=busy.share,
        waste=round(1 - tokens / max(1, padded), 3),
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        note=f"{rows:.0f} rows a batch",
    )


async def _ask(
    loaded: ModelSet, source: Iterator[str], tasks: int, *, seconds: float
) -> list[float]:
    """Let many tasks ask, one text at a time each; return the latencies in order."""
    (pipeline,) = loaded.pipelines.values()
    until = time.perf_counter() + seconds
    latencies: list[float] = []

    async def ask() -> None:
        while time.perf_counter() < until:
            caller = RowCaller(scope="tenant:bench", deadline=time.monotonic() + _TIMEOUT)
            started = time.perf_counter()
            await pipeline.vectors([next(source)], caller)
            latencies.append(time.perf_counter() - started)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(ask())
    return sorted(latencies)
