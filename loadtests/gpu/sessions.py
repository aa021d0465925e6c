"""Measures the speed of bare sessions: every graph, then the fastest graph with other batches."""

import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from loadtests.gpu.models import Batch, graph, random_batch
from loadtests.gpu.plan import (
    CANDIDATES,
    FULL_BATCH,
    IN_FLIGHT,
    LARGE,
    PLAIN,
    REFERENCE,
    TOKENS,
    Candidate,
    Options,
    alone,
    checked,
    in_session,
)
from loadtests.gpu.results import Measurement, Measuring, Report
from loadtests.gpu.timing import timed
from sluicegate.backends.executors.binding import BoundTensors, Tensors
from sluicegate.backends.executors.buckets import Shape
from sluicegate.backends.executors.graph import read_inputs
from sluicegate.backends.executors.host_memory import host_memory
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.provider import DeviceOptions, open_session
from sluicegate.backends.model_tools.graphs.options import Precision
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.settings import quiet_libraries
from sluicegate.backends.types import FloatArray, OutputKind

# The largest allowed distance from the CPU's fp32 vector, divided by that vector's length.
_BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 1e-1}
_COMPARED_ROWS = 16


class BareSession:
    """One session over one graph, with batches bound at fixed memory addresses."""

    def __init__(self, path: Path, device: DeviceOptions, *, width: int) -> None:
        self._device = device
        self._session = open_session(path, device)
        self._inputs = read_inputs(self._session, path)
        self._width = width
        import onnxruntime  # type: ignore[import-untyped] # noqa: PLC0415 - telemetry is off by now

        self._run_options = onnxruntime.RunOptions()
        if device.graphs:
            self._run_options.add_run_config_entry("gpu_graph_id", "1")

    def bind(self, batch: Batch) -> Callable[[], FloatArray]:
        """Return a function that runs this batch and returns its outputs."""
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


def open_bare(
    options: Options, family: str, candidate: Candidate, size: BertShape, **changes: Any
) -> BareSession:
    """Open a session over a graph; `changes` are fields of `DeviceOptions`."""
    device = DeviceOptions(
        provider=options.provider, attention_kernels=candidate.kernels, graphs=candidate.graphs
    )
    return BareSession(
        graph(options, family, candidate.form, size),
        msgspec.structs.replace(device, **changes),
        width=size.hidden,
    )


def run_on_cpu(path: Path, batch: Batch) -> FloatArray:
    """Return the fp32 outputs of a graph, computed with all cores of this machine."""
    quiet_libraries()
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {node.name for node in session.get_inputs()}
    given = {name: values for name, values in batch.items() if name in names}
    (found,) = session.run(["pooled"], given)
    result: FloatArray = found
    return result


def distance(found: FloatArray, expected: FloatArray) -> float:
    """Return the largest distance between a row and its expected row, divided by the row's length.

    The distance is infinite if a row has NaN.
    """
    if not np.isfinite(found).all():
        return float("inf")
    apart = np.linalg.norm(found - expected, axis=1)
    return float((apart / np.linalg.norm(expected, axis=1)).max())


def judged(error: float, candidate: Candidate, note: str = "") -> Measurement:
    """Return the result for outputs whose distance from the CPU's fp32 outputs is `error`."""
    bound = _BOUNDS[candidate.form.precision]
    if error <= bound:
        return Measurement(error=error, note=note)
    return Measurement(error=error, passed=False, note=f"further than {bound} from fp32 on the CPU")


def figures(options: Options, section: str, report: Report) -> Iterator[Measuring]:
    """Time TensorRT, or time each correct graph and then the fastest graph with other batches.

    Raises:
        ModuleNotFoundError: the libraries of TensorRT are not installed.
    """
    if section == "tensorrt":
        if options.provider != "cpu" and find_spec("tensorrt_libs") is None:
            raise ModuleNotFoundError(name="tensorrt_libs")
        for model in TOKENS:
            yield alone("TensorRT", model), partial(_measure_tensorrt, options, model)
        return
    for model in TOKENS:
        for each in CANDIDATES:
            measure = partial(_measure_graph, options, report, model, each)
            yield in_session(model, each.name), measure
        for way, batch in _variants():
            name = in_session(model, way, batch.get("rows", FULL_BATCH))
            yield name, partial(_measure_fastest, options, report, model, **batch)


def _variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the batches with which the fastest graph is timed, each with its name."""
    for runs in IN_FLIGHT[1:]:
        yield f"fastest, {runs} in flight", {"runs": runs}
    yield "fastest, mixed lengths", {"mixed": True}
    for rows in (1, 8, 64, 1024):
        yield "fastest", {"rows": rows}
    for rows in (1, 8):
        yield "CUDA graph", {"rows": rows, "graphs": True}


def _measure_graph(
    options: Options, report: Report, model: str, candidate: Candidate
) -> Measurement | None:
    """Compare the outputs of the whole model with the CPU's fp32 outputs, and time a full batch.

    Return `None` if the outputs of the graph were wrong in the check.
    """
    answers = report.figures.get(checked(model, candidate))
    if not (answers.passed if answers is not None else candidate is REFERENCE):
        return None
    bare = _open(options, model, candidate)
    shape = Shape(_COMPARED_ROWS, options.batch(model, FULL_BATCH).length)
    batch = random_batch(shape, options.shape(LARGE).vocab, mixed=True)
    found = judged(distance(bare.bind(batch)(), _reference(options, model, shape)), candidate)
    return msgspec.structs.replace(
        _timed(options, bare, model), error=found.error, passed=found.passed, note=found.note
    )


@cache
def _reference(options: Options, model: str, shape: Shape) -> FloatArray:
    path = graph(options, model, REFERENCE.form, options.shape(model))
    return run_on_cpu(path, random_batch(shape, options.shape(LARGE).vocab, mixed=True))


def _measure_fastest(
    options: Options,
    report: Report,
    model: str,
    *,
    rows: int = FULL_BATCH,
    runs: int = 1,
    mixed: bool = False,
    graphs: bool = False,
) -> Measurement | None:
    """Time the fastest graph; return `None` if there is none, or it cannot be captured."""
    fastest = report.fastest(model)
    if fastest is None or (graphs and fastest.form.packed):
        return None
    bare = _open(options, model, msgspec.structs.replace(fastest, graphs=graphs))
    found = _timed(options, bare, model, rows=rows, runs=runs, mixed=mixed)
    return msgspec.structs.replace(found, note=fastest.name)


def _measure_tensorrt(options: Options, model: str) -> Measurement:
    """Time TensorRT on the graph that it compiles."""
    started = time.perf_counter()
    bare = _open(
        options,
        model,
        PLAIN,
        provider="cpu" if options.provider == "cpu" else "tensorrt",
        precision=options.precision,
        engine_cache=options.work / "engines",
    )
    bare.bind(random_batch(options.batch(model, FULL_BATCH), options.shape(LARGE).vocab))()
    note = f"its engine was ready after {time.perf_counter() - started:.0f} s"
    return msgspec.structs.replace(_timed(options, bare, model), note=note)


def _open(options: Options, model: str, candidate: Candidate, **changes: Any) -> BareSession:
    return open_bare(options, model, candidate, options.shape(model), **changes)


def _timed(
    options: Options,
    bare: BareSession,
    model: str,
    *,
    rows: int = FULL_BATCH,
    runs: int = 1,
    mixed: bool = False,
) -> Measurement:
    """Time batches of `rows` rows, `runs` of them in flight."""
    batch = random_batch(options.batch(model, rows), options.shape(LARGE).vocab, mixed=mixed)
    ids = batch["input_ids"]
    return timed(
        options,
        [bare.bind(batch) for _ in range(runs)],
        rows=len(ids),
        tokens=int(batch["attention_mask"].sum()),
        padded=ids.size,
    )
