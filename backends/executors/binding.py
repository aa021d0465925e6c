"""Binds tensors of one shape to a session once and refills them for every run."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from backends.executors.buckets import Shape
from backends.executors.host_memory import Array, HostMemory
from backends.executors.padded_batch import PaddedBatch
from backends.types import FloatArray, OutputKind

BoundKey = tuple[Shape, OutputKind]


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the tensors of a session: inputs by role, the output's name, the device."""

    session: Any
    inputs: dict[str, np.dtype[Any]]
    output: str
    width: int
    memory: str
    device: int
    keep_on_device: bool
    """Whether the output lies on the device too: a captured graph writes where it did before."""


class BoundTensors:
    """Holds inputs and output of one shape at fixed addresses; one run at a time."""

    def __init__(self, shape: Shape, kind: OutputKind, tensors: Tensors, host: HostMemory) -> None:
        # Imported here because the library's environment is set when a session is opened.
        from onnxruntime import OrtValue  # type: ignore[import-untyped] # noqa: PLC0415

        self.shape = shape
        self._host = host
        self._binding = tensors.session.io_binding()
        self._staged: dict[str, Array] = {}
        self._values: dict[str, Any] = {}
        self._clean = False
        for name, number in tensors.inputs.items():
            self._staged[name] = host.array(shape, number)
            value = OrtValue.ortvalue_from_shape_and_type(
                shape, number.type, tensors.memory, tensors.device
            )
            self._values[name] = value
            self._binding.bind_ortvalue_input(name, value)
        outer: tuple[int, ...] = shape if kind is OutputKind.TOKENS else (shape.rows,)
        size = (*outer, tensors.width)
        self._result = host.array(size, np.dtype(np.float32))
        if tensors.keep_on_device:
            self._output = OrtValue.ortvalue_from_shape_and_type(
                size, np.float32, tensors.memory, tensors.device
            )
        else:
            self._output = OrtValue.ortvalue_from_numpy(self._result, "cpu", 0)
        self._on_device = tensors.keep_on_device
        self._binding.bind_ortvalue_output(tensors.output, self._output)

    @property
    def size_bytes(self) -> int:
        """What it holds of this machine's memory."""
        return self._result.nbytes + sum(array.nbytes for array in self._staged.values())

    def run(self, batch: PaddedBatch, run: Callable[[Any], None]) -> FloatArray:
        """Copy a batch in, let `run` run the binding, and return a copy of the real rows."""
        self._fill(batch)
        run(self._binding)
        result = self._output.numpy() if self._on_device else self._result
        rows, length = batch.ids.shape
        real = result[:rows] if batch.output is OutputKind.POOLED else result[:rows, :length]
        copy: FloatArray = real.copy()
        return copy

    def close(self) -> None:
        """Give its memory back."""
        for array in (*self._staged.values(), self._result):
            self._host.give_back(array)

    def _fill(self, batch: PaddedBatch) -> None:
        rows, length = batch.ids.shape
        given = batch.by_input()
        plain = not batch.type_ids.any()
        for name, staged in self._staged.items():
            if name == "token_type_ids" and plain and self._clean:
                continue  # zeros are there already
            staged.fill(0)
            staged[:rows, :length] = given[name]
            if name == "attention_mask":
                # A row without a token is fed to no kernel: padding rows have one.
                staged[rows:, 0] = 1
            self._values[name].update_inplace(staged)
        self._clean = plain


class Bindings:
    """Caches the bindings of one run slot: the most recently used ones, up to `max_bytes`."""

    def __init__(self, make: Callable[[BoundKey], BoundTensors], *, max_bytes: int) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._bound: OrderedDict[BoundKey, BoundTensors] = OrderedDict()
        self._kept: set[BoundKey] = set()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._bound)

    def get(self, key: BoundKey) -> BoundTensors:
        """Return the binding of a shape; a new binding may evict others."""
        bound = self._bound.get(key)
        if bound is not None:
            self._bound.move_to_end(key)
            return bound
        bound = self._make(key)
        self._bound[key] = bound
        self.size_bytes += bound.size_bytes
        self._evict(key)
        return bound

    def keep(self, key: BoundKey) -> None:
        """Never drop the binding of a shape: a captured graph holds its addresses."""
        self._kept.add(key)

    def _evict(self, newest: BoundKey) -> None:
        for key in list(self._bound):
            if self.size_bytes <= self._max_bytes:
                return
            if key != newest and key not in self._kept:
                old = self._bound.pop(key)
                self.size_bytes -= old.size_bytes
                old.close()
