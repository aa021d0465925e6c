"""Runs a graph with TensorRT: one engine per range of lengths, built when the graph is opened.

TensorRT takes minutes to build an engine for a range of shapes. If no range is given, ONNX Runtime
builds a new engine whenever a batch is larger than all earlier batches. If a range is given, ONNX
Runtime builds the engine when a session is opened. A session can only have one range (onnxruntime
pull request 31624), so each range has its own session.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import measure_cost
from sluicegate.backends.executors.cuda import RunLimits
from sluicegate.backends.executors.device_info import read_device
from sluicegate.backends.executors.engine_profiles import (
    EngineProfile,
    engine_folder,
    engine_profiles,
    load_tensorrt,
    make_engine_folder,
)
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.provider import DeviceOptions, check_build, runtime_version
from sluicegate.backends.executors.trial_shapes import device_trials
from sluicegate.backends.types import FloatArray

# For this many seconds, trial batches are measured when a model is loaded.
_MEASURING = 10.0
OpenOnDevice = Callable[[GraphSource, DeviceOptions, RunLimits], ModelExecutor]


class TensorRtExecutor(ModelExecutor):
    """Runs each batch in the engine for its length.

    `engines` are ordered from short to long rows. If a batch has more rows than its engine accepts,
    the batch runs in several pieces.
    """

    def __init__(
        self, source: GraphSource, engines: Sequence[tuple[EngineProfile, ModelExecutor]]
    ) -> None:
        first, last = engines[0], engines[-1]
        self.provider = first[1].provider
        self.worker_threads = first[1].worker_threads
        self.dimensions, self.joined = source.dimensions, source.joined
        self._engines = engines
        bounds = BatchBounds(rows=first[0].rows, tokens=first[0].rows * first[0].longest)
        self.cost = measure_cost(
            source,
            self.run,
            time.perf_counter,
            trials=device_trials(bounds, last[0].longest),
            seconds=_MEASURING,
        )

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        rows, length = batch.ids.shape
        profile, executor = next(
            (engine for engine in self._engines if length <= engine[0].longest), self._engines[-1]
        )
        if rows <= profile.rows:
            return executor.run(batch)
        starts = range(0, rows, profile.rows)
        pieces = [executor.run(_rows_of(batch, n, n + profile.rows)) for n in starts]
        return np.concatenate(pieces)


def _rows_of(batch: PaddedBatch, start: int, end: int) -> PaddedBatch:
    return msgspec.structs.replace(
        batch,
        ids=batch.ids[start:end],
        mask=batch.mask[start:end],
        type_ids=batch.type_ids[start:end],
    )


def open_engines(
    source: GraphSource,
    options: DeviceOptions,
    limits: RunLimits,
    open_on_device: OpenOnDevice,
) -> TensorRtExecutor:
    """Open a session for each range of lengths; build engines that are not in the cache.

    Raises:
        ModelProblem: a session cannot be opened.
    """
    check_build(source.path, options)
    profiles = engine_profiles(limits.batch, source.max_tokens, limits.buckets)
    root = options.engine_cache if source.digest else None
    folder_of = _engine_folders(root, source, options) if root is not None else lambda _: None
    engines: list[tuple[EngineProfile, ModelExecutor]] = []
    for profile in profiles:
        executor = open_on_device(
            msgspec.structs.replace(source, max_tokens=profile.longest),
            msgspec.structs.replace(
                options,
                memory_bytes=options.memory_bytes // len(profiles),
                profile=profile,
                engine_cache=folder_of(profile),
            ),
            msgspec.structs.replace(
                limits,
                batch=BatchBounds(rows=profile.rows, tokens=profile.rows * profile.longest),
                graph_rows=min(limits.graph_rows, profile.rows),
            ),
        )
        engines.append((profile, executor))
    return TensorRtExecutor(source, engines)


def _engine_folders(
    root: Path, source: GraphSource, options: DeviceOptions
) -> Callable[[EngineProfile], Path | None]:
    """Return a function that makes the cache folder for the engine of a profile."""
    device, version = read_device(options.device), load_tensorrt()

    def make(profile: EngineProfile) -> Path | None:
        return make_engine_folder(
            engine_folder(
                root, source, profile, device=device, tensorrt=version, runtime=runtime_version()
            )
        )

    return make
