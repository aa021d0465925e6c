"""Checks the answers of bare sessions and measures their highest speed."""

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np

from backends.errors import ExecutorDied
from backends.executors.binding import BoundTensors, Tensors
from backends.executors.buckets import Shape
from backends.executors.cuda import explain
from backends.executors.graph import read_inputs
from backends.executors.host_memory import host_memory
from backends.executors.padded_batch import PaddedBatch
from backends.executors.provider import DeviceOptions, open_session
from backends.model_tools.graphs.form import Precision
from backends.settings import quiet_libraries
from backends.types import FloatArray, OutputKind
from loadtests.gpu.device import UtilizationSampler
from loadtests.gpu.models import Batch, build_graphs, ensure_graph, random_batch
from loadtests.gpu.plan import (
    CANDIDATES,
    MAIN,
    REFERENCE,
    SMALL,
    Candidate,
    Journal,
    Measurement,
    Options,
    SectionResult,
    fastest,
    read_result,
)

# How far a row's vector may be from the CPU's in fp32, relative to its length.
_BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}
_WARM_UP = 3
_GRAPH_ROWS = 8
_IN_FLIGHT = (2, 3)


class SessionBenchmark:
    """One session over one graph, and batches bound to it at fixed addresses."""

    def __init__(self, options: Options, preset: str, candidate: Candidate) -> None:
        path = ensure_graph(options, preset, candidate.form)
        self._device = candidate.device_options(options)
        self._session = open_session(path, self._device)
        self._inputs = read_inputs(self._session, path)
        self._width = options.shape(preset).hidden
        self._run_options = _run_options(self._device)

    def bind(self, batch: Batch) -> Callable[[], FloatArray]:
        """Return what runs this batch and waits for its answer."""
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


def check(options: Options) -> SectionResult:
    """Compare every candidate with fp32 on the CPU, on rows of real lengths."""
    journal = Journal(options, "check")
    for preset in (MAIN, SMALL):
        batch = random_batch(options, Shape(16, options.length), seed=3, mixed=True)
        build_graphs(options, preset, [candidate.form for candidate in CANDIDATES])
        expected = _reference(options, preset, batch)
        for candidate in CANDIDATES:
            what = f"{preset} {candidate.name}"
            if not journal.has(what):
                journal.begin(what)
                journal.end(_compare(options, preset, candidate, batch, expected))
    right = [line for line in journal.lines if line.passed]
    return SectionResult(
        section="check",
        status="done" if right else "failed",
        reason="" if right else "no candidate gives the right answers",
        lines=journal.lines,
    )


def ceiling(options: Options) -> SectionResult:
    """Time the candidates in one batch, then the best one in other shapes."""
    batch = random_batch(options, options.batch, seed=4)
    mixed = random_batch(options, options.batch, seed=5, mixed=True)
    journal = Journal(options, "ceiling")
    for candidate in _right(options, MAIN):
        what = f"{MAIN} {candidate.name}"
        if journal.has(what):
            continue
        journal.begin(what)
        try:
            bench = SessionBenchmark(options, MAIN, candidate)
            full = _timed(options, bench, batch, what)
            journal.end(full, _timed(options, bench, mixed, f"{what}, mixed lengths"))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors have no other base
            journal.end(_failed(what, error))
    chosen = fastest(journal.lines)
    if chosen is None:
        reason = "there is nothing to time"
        return SectionResult(section="ceiling", status="failed", reason=reason, lines=journal.lines)
    for runs in _IN_FLIGHT:
        what = f"{MAIN} {chosen.name}, {runs} in flight"
        if not journal.has(what):
            journal.begin(what)
            journal.end(_side_by_side(options, chosen, batch, what, runs=runs))
    _shapes(options, chosen, journal)
    return SectionResult(section="ceiling", status="done", lines=journal.lines, best=chosen.name)


def compare(found: FloatArray, expected: FloatArray) -> float:
    """Return the largest distance of a row, relative to its length; infinite for NaN."""
    if not np.isfinite(found).all():
        return float("inf")
    distance = np.linalg.norm(found - expected, axis=1)
    return float((distance / np.linalg.norm(expected, axis=1)).max())


def _reference(options: Options, preset: str, batch: Batch) -> FloatArray:
    # All threads of this machine: it is checked, not timed.
    quiet_libraries()
    import onnxruntime  # type: ignore[import-untyped] # noqa: PLC0415

    path = ensure_graph(options, preset, REFERENCE.form)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["pooled"], batch)
    result: FloatArray = found
    return result


def _compare(
    options: Options, preset: str, candidate: Candidate, batch: Batch, expected: FloatArray
) -> Measurement:
    what = f"{preset} {candidate.name}"
    try:
        run = SessionBenchmark(options, preset, candidate).bind(batch)
        # Twice: memory that is used again must not show.
        error = max(compare(run(), expected), compare(run(), expected))
    except Exception as failure:  # noqa: BLE001 - ONNX Runtime's errors have no other base
        return _failed(what, failure)
    bound = _BOUNDS[candidate.form.precision]
    note = "" if error <= bound else f"further than {bound} from fp32 on the CPU"
    return Measurement(what=what, error=error, passed=error <= bound, note=note)


def _right(options: Options, preset: str) -> list[Candidate]:
    """Return the candidates that the check passed; those of a run before this one count too."""
    found = read_result(options, "check")
    if found is None:
        return [REFERENCE]
    passed = {line.what for line in found.lines if line.passed}
    return [each for each in CANDIDATES if f"{preset} {each.name}" in passed]


def _shapes(options: Options, chosen: Candidate, journal: Journal) -> None:
    for preset in (MAIN, SMALL):
        plain = SessionBenchmark(options, preset, chosen)
        for shape in options.shapes:
            _in_shape(options, preset, chosen, shape, journal, plain)
            if shape.rows <= _GRAPH_ROWS and not chosen.form.packed:
                captured = msgspec.structs.replace(chosen, graphs=True)
                _in_shape(options, preset, captured, shape, journal)


def _in_shape(
    options: Options,
    preset: str,
    chosen: Candidate,
    shape: Shape,
    journal: Journal,
    bench: SessionBenchmark | None = None,
) -> None:
    """Time one shape; a session that captures graphs is opened for it alone."""
    what = f"{preset} {chosen.name} {shape.rows}x{shape.length}"
    if journal.has(what):
        return
    journal.begin(what)
    try:
        batch = random_batch(options, shape, seed=6)
        journal.end(
            _timed(options, bench or SessionBenchmark(options, preset, chosen), batch, what)
        )
    except Exception as error:  # noqa: BLE001 - one shape that cannot be spoils no other
        journal.end(_failed(what, error))


def _timed(options: Options, bench: SessionBenchmark, batch: Batch, what: str) -> Measurement:
    """Time a batch: the median of several runs, each of a third of the seconds given."""
    run = bench.bind(batch)
    for _ in range(_WARM_UP):
        run()
    spans: list[float] = []
    with UtilizationSampler(options.device) as busy:
        until = time.perf_counter() + options.seconds / 3
        while len(spans) < options.rounds or time.perf_counter() < until:
            started = time.perf_counter()
            run()
            spans.append(time.perf_counter() - started)
    span = statistics.median(spans)
    rows, tokens = batch["input_ids"].shape[0], int(batch["attention_mask"].sum())
    return Measurement(
        what=what,
        rate=rows / span,
        tokens_per_second=tokens / span,
        busy=busy.share,
        waste=round(1 - tokens / batch["input_ids"].size, 3),
        p50=span,
    )


def _side_by_side(
    options: Options, chosen: Candidate, batch: Batch, what: str, *, runs: int
) -> Measurement:
    """Time one session with several runs in flight, each on memory of its own."""
    bench = SessionBenchmark(options, MAIN, chosen)
    bound = [bench.bind(batch) for _ in range(runs)]
    for run in bound * _WARM_UP:
        run()
    started = time.perf_counter()
    until = started + options.seconds / 3

    def repeat(run: Callable[[], FloatArray]) -> int:
        count = 0
        while time.perf_counter() < until:
            run()
            count += 1
        return count

    with UtilizationSampler(options.device) as busy, ThreadPoolExecutor(runs) as pool:
        count = sum(pool.map(repeat, bound))
        span = (time.perf_counter() - started) / max(1, count)
    rows, tokens = batch["input_ids"].shape[0], int(batch["attention_mask"].sum())
    return Measurement(
        what=what, rate=rows / span, tokens_per_second=tokens / span, busy=busy.share
    )


def _failed(what: str, error: Exception) -> Measurement:
    if isinstance(explain(error), ExecutorDied):
        # Nothing can run here any more. The journal has it; another process goes on.
        sys.exit(str(error))
    first = str(error).strip().split("\n", 1)[0]
    text = " ".join(word.rpartition("/")[2] for word in first.split())
    return Measurement(what=what, passed=False, note=f"{type(error).__name__}: {text[:200]}")


def _run_options(device: DeviceOptions) -> Any:
    import onnxruntime  # noqa: PLC0415 - after its telemetry is off

    found = onnxruntime.RunOptions()
    if device.graphs:
        found.add_run_config_entry("gpu_graph_id", "1")
    return found
