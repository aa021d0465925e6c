"""Measures the speed of bare sessions: every graph, then the fastest graph with other batches."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
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
from backends.model_tools.graphs.options import Precision
from backends.model_tools.graphs.shapes import BertShape
from backends.settings import quiet_libraries
from backends.types import FloatArray, OutputKind
from loadtests.gpu.models import Batch, graph, random_batch
from loadtests.gpu.plan import LARGE, PLAIN, REFERENCE, Candidate, Figure, Options, checked
from loadtests.gpu.results import Measurement, Report
from loadtests.gpu.timing import timed

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


@contextmanager
def start(
    options: Options, figures: Sequence[Figure], report: Report
) -> Iterator[Callable[[Figure], Measurement | None]]:
    """Time TensorRT, or time each correct graph and then the fastest graph with other batches.

    Raises:
        ModuleNotFoundError: the libraries of TensorRT are not installed.
    """
    if figures[0].section == "session":
        yield partial(_measure, options, report)
    elif options.provider != "cpu" and find_spec("tensorrt_libs") is None:
        raise ModuleNotFoundError(name="tensorrt_libs")
    else:
        yield partial(_measure_tensorrt, options)


def _measure(options: Options, report: Report, figure: Figure) -> Measurement | None:
    """Measure a figure; return `None` if the outputs are wrong or the graph cannot be captured."""
    if figure.candidate is not None:
        return _measure_form(options, report, figure, figure.candidate)
    fastest = report.fastest(figure.model)
    graphs = figure.way == "CUDA graph"
    if fastest is None or (graphs and fastest.form.packed):
        return None
    bare = _open(options, figure, msgspec.structs.replace(fastest, graphs=graphs))
    runs = int(figure.way.split()[1]) if figure.way.endswith("in flight") else 1
    return msgspec.structs.replace(_timed(options, figure, bare, runs), note=fastest.name)


def _measure_form(
    options: Options, report: Report, figure: Figure, candidate: Candidate
) -> Measurement | None:
    """Compare the outputs of the whole model with the CPU's fp32 outputs, and time a full batch."""
    answers = report.figures.get(checked(figure.model, candidate))
    if not (answers.passed if answers is not None else candidate is REFERENCE):
        return None
    bare = _open(options, figure, candidate)
    shape = Shape(_COMPARED_ROWS, options.batch(figure).length)
    batch = random_batch(shape, options.shape(LARGE).vocab, mixed=True)
    found = judged(
        distance(bare.bind(batch)(), _reference(options, figure.model, shape)), candidate
    )
    return msgspec.structs.replace(
        _timed(options, figure, bare), error=found.error, passed=found.passed, note=found.note
    )


@cache
def _reference(options: Options, model: str, shape: Shape) -> FloatArray:
    path = graph(options, model, REFERENCE.form, options.shape(model))
    return run_on_cpu(path, random_batch(shape, options.shape(LARGE).vocab, mixed=True))


def _measure_tensorrt(options: Options, figure: Figure) -> Measurement:
    """Time TensorRT on the graph that it compiles."""
    started = time.perf_counter()
    bare = _open(
        options,
        figure,
        PLAIN,
        provider="cpu" if options.provider == "cpu" else "tensorrt",
        precision=options.precision,
        engine_cache=options.work / "engines",
    )
    bare.bind(random_batch(options.batch(figure), options.shape(LARGE).vocab))()
    note = f"its engine was ready after {time.perf_counter() - started:.0f} s"
    return msgspec.structs.replace(_timed(options, figure, bare), note=note)


def _open(options: Options, figure: Figure, candidate: Candidate, **changes: Any) -> BareSession:
    size = options.shape(figure.model)
    return open_bare(options, figure.model, candidate, size, **changes)


def _timed(options: Options, figure: Figure, bare: BareSession, runs: int = 1) -> Measurement:
    """Time the batch of a figure, with `runs` batches in flight."""
    mixed = figure.way.endswith("mixed lengths")
    batch = random_batch(options.batch(figure), options.shape(LARGE).vocab, mixed=mixed)
    ids = batch["input_ids"]
    return timed(
        options,
        [bare.bind(batch) for _ in range(runs)],
        rows=len(ids),
        tokens=int(batch["attention_mask"].sum()),
        padded=ids.size,
    )
