"""Batches run in the engine of their length; the CPU stands in for TensorRT."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluicegate.backends.device_defaults import BatchBounds
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.buckets import Buckets, Shape
from sluicegate.backends.executors.cuda import CudaExecutor, RunLimits
from sluicegate.backends.executors.engine_profiles import EngineProfile, engine_profiles
from sluicegate.backends.executors.graph import GraphSource
from sluicegate.backends.executors.onnx import OnnxExecutor
from sluicegate.backends.executors.padded_batch import PaddedBatch, pad
from sluicegate.backends.executors.provider import DeviceOptions
from sluicegate.backends.executors.tensorrt import open_engines
from sluicegate.backends.types import FloatArray, OutputKind
from testing.model_repository import DIMENSIONS, toy_graph

OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
CPU = DeviceOptions(provider="cpu", memory_bytes=1000)
LIMITS = RunLimits(batch=BatchBounds(rows=13, tokens=130), graph_rows=4, graph_tokens=64)


class Engines:
    """Opens sessions on the CPU, and notes what each was told and ran."""

    def __init__(self) -> None:
        self.told: list[tuple[DeviceOptions, RunLimits]] = []
        self.ran: list[tuple[EngineProfile, Shape]] = []

    def __call__(
        self, source: GraphSource, options: DeviceOptions, limits: RunLimits
    ) -> ModelExecutor:
        self.told.append((options, limits))
        executor = CudaExecutor(
            source,
            options=msgspec.structs.replace(options, profile=None),
            limits=msgspec.structs.replace(limits, graph_rows=0),
        )
        run, profile, buckets = executor.run, options.profile, limits.buckets
        assert profile is not None
        within = msgspec.structs.replace(buckets, max_length=source.max_tokens)

        def note(batch: PaddedBatch) -> FloatArray:
            self.ran.append((profile, within.fit(*batch.ids.shape)))
            return run(batch)

        executor.run = note  # type: ignore[method-assign]
        return executor


@pytest.fixture
def source(tmp_path: Path) -> GraphSource:
    path = tmp_path / "model.onnx"
    path.write_bytes(toy_graph())
    return GraphSource(path=path, outputs=OUTPUTS, dimensions=DIMENSIONS, max_tokens=64)


@pytest.mark.parametrize("output", list(OUTPUTS))
def test_batches_of_every_size_are_answered_as_by_one_session(
    source: GraphSource, output: OutputKind
) -> None:
    engines, plain = Engines(), OnnxExecutor(source, worker_threads=1)
    executor = open_engines(source, CPU, LIMITS, engines)
    random = np.random.default_rng(1)

    for rows, longest in [(1, 1), (13, 10), (12, 11), (3, 40), (13, 40), (1, 64), (7, 64)]:
        lengths = [longest, *random.integers(1, longest + 1, rows - 1)]
        batch = pad([random.integers(1, 80, n, dtype=np.int32) for n in lengths], output)

        found, expected = executor.run(batch), plain.run(batch)

        if output is OutputKind.TOKENS:
            found, expected = found[batch.mask > 0], expected[batch.mask > 0]
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_no_run_is_beyond_the_range_of_its_engine(source: GraphSource) -> None:
    """Trial runs, too: an engine is built for a shape beyond its range, in minutes."""
    engines = Engines()
    executor = open_engines(source, CPU, LIMITS, engines)
    for rows in range(1, 14):
        for longest in (1, 9, 10, 11, 40, 41, 64):
            executor.run(pad([np.ones(longest, dtype=np.int32)] * rows, OutputKind.POOLED))

    assert {profile.longest for profile, _ in engines.ran} == {10, 40, 64}
    for profile, shape in engines.ran:
        assert shape.rows <= profile.rows
        assert shape.length <= profile.longest


def test_captured_shapes_are_within_the_range(source: GraphSource) -> None:
    engines = Engines()
    open_engines(source, CPU, LIMITS, engines)

    profiles = engine_profiles(LIMITS.batch, source.max_tokens, Buckets())
    for profile, (options, limits) in zip(profiles, engines.told, strict=True):
        assert options.profile == profile
        for shape in limits.within(profile.longest).captured():
            assert shape.rows <= profile.rows
            assert shape.length <= profile.longest


def test_engines_share_the_memory_of_their_encoder(source: GraphSource) -> None:
    engines = Engines()
    open_engines(source, CPU, LIMITS, engines)

    assert [options.memory_bytes for options, _ in engines.told] == [333, 333, 333]
