"""Measures tokenizer, batcher and executor in this process, without HTTP."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from backends.batching.coalescing import RowCaller
from backends.executors.opening import executor_opener
from backends.qualification.qualify import qualify_unmeasured
from backends.repository.catalogue import read_catalogue
from backends.serving.core import ModelSet
from backends.serving.loading import LoadingTools, load_models, make_shared
from backends.settings import BackendSettings, quiet_libraries
from backends.telemetry.spans import NO_TRACING
from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import chosen_form, import_classifier, texts
from loadtests.gpu.plan import BATCH_TOKENS, FULL_BATCH, IN_FLIGHT_TEXTS, SMALL, Figure, Options
from loadtests.gpu.results import Journal, Measurement, SectionState

_MODEL = "bench"
_TIMEOUT = 60.0


def backend_settings(options: Options, figure: Figure, models: Path) -> BackendSettings:
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


def engine(options: Options) -> SectionState:
    """Ask for single texts from many tasks at once, with one, two and three runs in flight."""
    models = import_classifier(options, SMALL)
    return Journal(options).measure(
        "engine", lambda figure: asyncio.run(_measure(options, figure, models))
    )


async def _measure(options: Options, figure: Figure, models: Path) -> Measurement:
    quiet_libraries()
    settings = backend_settings(options, figure, models)
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
            note = "; ".join(loaded.problems.values())
            return Measurement(what=figure.name, passed=False, note=note)
        for encoder in loaded.encoders:
            await stack.enter_async_context(encoder.batcher)
        return await _load(options, loaded, figure, note=chosen_form(models))


async def _load(options: Options, loaded: ModelSet, figure: Figure, *, note: str) -> Measurement:
    source = texts(options, length=options.batch(figure).length, seed=8)
    latencies: list[float] = []
    warm = time.perf_counter() + options.seconds / 4
    await _ask(options, loaded, source, [], until=warm)
    before = loaded.encoders[0].batcher.statistics()
    started = time.perf_counter()
    with UtilizationSampler() as busy:
        await _ask(options, loaded, source, latencies, until=started + options.seconds)
    took = time.perf_counter() - started
    after = loaded.encoders[0].batcher.statistics()
    tokens, padded = after.tokens - before.tokens, after.padded_tokens - before.padded_tokens
    latencies.sort()
    rows = (after.rows - before.rows) / max(1, after.batches - before.batches)
    return Measurement(
        what=figure.name,
        rate=len(latencies) / took,
        tokens_per_second=tokens / took,
        busy=busy.share,
        waste=round(1 - tokens / max(1, padded), 3),
        p50=latencies[len(latencies) // 2],
        p99=latencies[len(latencies) * 99 // 100],
        note=f"{rows:.0f} rows a batch, {note}",
    )


async def _ask(
    options: Options,
    loaded: ModelSet,
    source: Iterator[str],
    latencies: list[float],
    *,
    until: float,
) -> None:
    """Let many tasks ask, one text at a time each, until the time is over."""
    pipeline = loaded.pipelines[_MODEL]

    async def ask() -> None:
        while time.perf_counter() < until:
            caller = RowCaller(scope="tenant:bench", deadline=time.monotonic() + _TIMEOUT)
            started = time.perf_counter()
            await pipeline.vectors([next(source)], caller)
            latencies.append(time.perf_counter() - started)

    async with asyncio.TaskGroup() as group:
        for _ in range(8 if options.tiny else IN_FLIGHT_TEXTS):
            group.create_task(ask())
