"""Runs a graph without anything of a backend around it: a session, and batches bound to it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from backends.executors.binding import BoundTensors, Tensors
from backends.executors.buckets import Shape
from backends.executors.graph import read_inputs
from backends.executors.host_memory import host_memory
from backends.executors.padded_batch import PaddedBatch
from backends.executors.provider import DeviceOptions, open_session
from backends.model_tools.graphs.form import Precision
from backends.settings import quiet_libraries
from backends.types import FloatArray, OutputKind
from loadtests.gpu.models import Batch

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
