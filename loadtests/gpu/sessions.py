"""Measures the highest speed of bare sessions: each form, then the fastest in other batches."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from backends.executors.binding import BoundTensors, Tensors
from backends.executors.buckets import Shape
from backends.executors.graph import read_inputs
from backends.executors.host_memory import host_memory
from backends.executors.padded_batch import PaddedBatch
from backends.executors.provider import DeviceOptions, open_session
from backends.model_tools.graphs.options import GraphOptions, Precision
from backends.settings import quiet_libraries
from backends.types import FloatArray, OutputKind
from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import Batch, build_graphs, ensure_graph, random_batch
from loadtests.gpu.plan import (
    CANDIDATES,
    FULL_BATCH,
    REFERENCE,
    ROUNDS,
    Candidate,
    Figure,
    Options,
    checked,
)
from loadtests.gpu.results import Journal, Measurement, Report, SectionState, fastest

# How far a row's vector may be from the CPU's in fp32, relative to its length.
BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 1e-1}


class BareSession:
    """One session over one graph, and batches bound to it at fixed addresses."""

    def __init__(self, path: Path, device: DeviceOptions, *, width: int) -> None:
        self._device = device
        self._session = open_session(path, device)
        self._inputs = read_inputs(self._session, path)
        self._width = width
        self._run_options = _run_options(device)

    def bind(self, batch: Batch) -> Callable[[], FloatArray]:
        """Return a function that runs this batch and returns its answer."""
        shape = Shape(*batch["input_ids"].shape)
        tensors = Tensors(
            session=self._session,
            inputs=self._inputs,
            output="pooled",
            width=self._width,
            memory=self._device.memory,
            device=self._device.device,
            keep_on_device=self._device.graphs,
        )
        bound = BoundTensors(shape, OutputKind.POOLED, tensors, host_memory(self._device.memory))
        padded = PaddedBatch(
            ids=batch["input_ids"],
            mask=batch["attention_mask"],
            type_ids=batch["token_type_ids"],
            output=OutputKind.POOLED,
        )

        def run(binding: Any) -> None:
            self._session.run_with_iobinding(binding, self._run_options)

        return lambda: bound.run(padded, run)


def run_on_cpu(path: Path, batch: Batch) -> FloatArray:
    """Return the answers of a graph in fp32, with all threads of this machine."""
    quiet_libraries()
    import onnxruntime  # type: ignore[import-untyped] # noqa: PLC0415

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {node.name for node in session.get_inputs()}
    given = {name: values for name, values in batch.items() if name in names}
    (found,) = session.run(["pooled"], given)
    result: FloatArray = found
    return result


def distance(found: FloatArray, expected: FloatArray) -> float:
    """Return the largest distance of a row, relative to its length; infinite for NaN."""
    if not np.isfinite(found).all():
        return float("inf")
    apart = np.linalg.norm(found - expected, axis=1)
    return float((apart / np.linalg.norm(expected, axis=1)).max())


def _run_options(device: DeviceOptions) -> Any:
    import onnxruntime  # noqa: PLC0415 - after its telemetry is off

    found = onnxruntime.RunOptions()
    if device.graphs:
        found.add_run_config_entry("gpu_graph_id", "1")
    return found


_WARM_UP = 3
_COMPARED_ROWS = 16
_TENSORRT = Candidate(form=GraphOptions(attention="plain", outputs=("pooled",)))


def session(options: Options) -> SectionState:
    """Time the forms whose answers were right, then the fastest of each size in other ways."""
    journal = Journal(options)

    def measure(figure: Figure) -> Measurement | None:
        candidate = _candidate_of(figure, journal.report)
        return _measure(options, figure, candidate) if candidate is not None else None

    return journal.measure("session", measure)


def tensorrt(options: Options) -> SectionState:
    """Time TensorRT on the form that it compiles.

    Raises:
        ModuleNotFoundError: its libraries are not installed.
    """
    if options.provider != "cpu" and find_spec("tensorrt_libs") is None:
        raise ModuleNotFoundError(name="tensorrt_libs")
    return Journal(options).measure("tensorrt", lambda figure: _measure_tensorrt(options, figure))


def _candidate_of(figure: Figure, report: Report) -> Candidate | None:
    """Return the form that a figure is about; `None` for one that answers wrongly, or is slower."""
    named = next((each for each in CANDIDATES if each.name == figure.way), None)
    if named is not None:
        answers = report.figure(checked(figure.preset, named))
        return named if (answers.passed if answers is not None else named is REFERENCE) else None
    batch = f"session, {figure.preset}, {FULL_BATCH}x{figure.length}"
    found = fastest(report, batch)
    if found is None or figure.way != "CUDA graph":
        return found
    return None if found.form.packed else msgspec.structs.replace(found, graphs=True)


def _measure(options: Options, figure: Figure, candidate: Candidate) -> Measurement:
    if candidate.name == figure.way:
        return _in_a_form(options, figure, candidate)
    mixed = figure.way.endswith("mixed lengths")
    batch = random_batch(options, options.batch(figure), seed=4, mixed=mixed)
    bare = _open(options, figure.preset, candidate)
    runs = int(figure.way.split()[1]) if figure.way.endswith("in flight") else 1
    timed = _timed(options, [bare.bind(batch) for _ in range(runs)], batch, figure.name)
    return msgspec.structs.replace(timed, note=candidate.name)


def _in_a_form(options: Options, figure: Figure, candidate: Candidate) -> Measurement:
    """Compare the answers of the whole model with fp32 on the CPU, and time a full batch."""
    bare = _open(options, figure.preset, candidate)
    small, expected = _reference(options, figure.preset, figure.length)
    error = distance(bare.bind(small)(), expected)
    batch = random_batch(options, options.batch(figure), seed=4)
    timed = _timed(options, [bare.bind(batch)], batch, figure.name)
    bound = BOUNDS[candidate.form.precision]
    passed = error <= bound
    note = "" if passed else f"further than {bound} from fp32 on the CPU"
    return msgspec.structs.replace(timed, error=error, passed=passed, note=note)


def _measure_tensorrt(options: Options, figure: Figure) -> Measurement:
    provider = options.provider if options.provider == "cpu" else "tensorrt"
    device = msgspec.structs.replace(
        _TENSORRT.device_options(options),
        provider=provider,
        precision=options.precision(),
        engine_cache=options.work / "engines",
    )
    started = time.perf_counter()
    bare = BareSession(
        ensure_graph(options, figure.preset, _TENSORRT.form),
        device,
        width=options.shape(figure.preset).hidden,
    )
    batch = random_batch(options, options.batch(figure), seed=4)
    run = bare.bind(batch)
    run()
    built = time.perf_counter() - started
    timed = _timed(options, [run], batch, figure.name)
    return msgspec.structs.replace(timed, note=f"its engine was ready after {built:.0f} s")


def _open(options: Options, preset: str, candidate: Candidate) -> BareSession:
    path = ensure_graph(options, preset, candidate.form)
    device = candidate.device_options(options)
    return BareSession(path, device, width=options.shape(preset).hidden)


@cache
def _reference(options: Options, preset: str, length: int) -> tuple[Batch, FloatArray]:
    """Return a small batch and its answers in fp32; builds all forms of a model at once."""
    build_graphs(options, preset, [candidate.form for candidate in CANDIDATES])
    length = min(length, 16) if options.tiny else length
    batch = random_batch(options, Shape(_COMPARED_ROWS, length), seed=3, mixed=True)
    return batch, run_on_cpu(ensure_graph(options, preset, REFERENCE.form), batch)


def _timed(
    options: Options, runs: list[Callable[[], FloatArray]], batch: Batch, what: str
) -> Measurement:
    """Time a batch in each of `runs` at once, for a third of the seconds of a figure."""
    for run in runs * _WARM_UP:
        run()
    until = time.perf_counter() + options.seconds / 3

    def repeat(run: Callable[[], FloatArray]) -> list[float]:
        spans: list[float] = []
        while len(spans) < ROUNDS or time.perf_counter() < until:
            started = time.perf_counter()
            run()
            spans.append(time.perf_counter() - started)
        return spans

    started = time.perf_counter()
    with UtilizationSampler() as busy, ThreadPoolExecutor(len(runs)) as pool:
        spans = [span for each in pool.map(repeat, runs) for span in each]
        took = time.perf_counter() - started
    rows, tokens = batch["input_ids"].shape[0], int(batch["attention_mask"].sum())
    # With one run at a time, the median ignores disturbed runs.
    span = statistics.median(spans) if len(runs) == 1 else took / len(spans)
    return Measurement(
        what=what,
        rate=rows / span,
        tokens_per_second=tokens / span,
        busy=busy.share,
        waste=round(1 - tokens / batch["input_ids"].size, 3),
        p50=statistics.median(spans),
    )
