"""Binds tensors of a shape to a session once, and reuses them for all batches of this shape."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.executors.buckets import Shape
from sluicegate.backends.executors.host_memory import Array, HostMemory
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.types import FloatArray, JoinedWidth, OutputKind

BoundKey = tuple[Shape, OutputKind]


class Tensors(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the input and output tensors of a session, and the device that holds them."""

    session: Any
    inputs: dict[str, np.dtype[Any]]
    output: str
    width: int
    memory: str
    device: int
    keep_on_device: bool
    """Whether the output is in device memory. Captured graphs need this, so that its address is
    fixed."""
    joined: JoinedWidth = JoinedWidth()


class BoundTensors:
    """Holds the inputs and output of one shape at fixed addresses, for one run at a time."""

    def __init__(self, shape: Shape, kind: OutputKind, tensors: Tensors, host: HostMemory) -> None:
        # Imported only here, because the library's environment variables must be set first.
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
        self._joined = tensors.joined
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
        """The host memory of the tensors, without device memory."""
        return self._result.nbytes + sum(array.nbytes for array in self._staged.values())

    def run(self, batch: PaddedBatch, run: Callable[[Any], None]) -> FloatArray:
        """Copy a batch to the inputs, call `run`, and return a copy of the output's real rows."""
        self._fill(batch)
        run(self._binding)
        result = self._output.numpy() if self._on_device else self._result
        rows, length = batch.ids.shape
        real = result[:rows]
        if batch.output is not OutputKind.POOLED:
            end = length if batch.output is OutputKind.TOKENS else self._joined.of(length)
            real = real[:, :end]
        copy: FloatArray = real.copy()
        return copy

    def close(self) -> None:
        """Return the host memory to its allocator."""
        for array in (*self._staged.values(), self._result):
            self._host.give_back(array)

    def _fill(self, batch: PaddedBatch) -> None:
        rows, length = batch.ids.shape
        given = batch.by_input()
        plain = not batch.type_ids.any()
        for name, staged in self._staged.items():
            if name == "token_type_ids" and plain and self._clean:
                continue  # the tensor is zero already
            staged.fill(0)
            staged[:rows, :length] = given[name]
            if name == "attention_mask":
                # Padding rows get one token, because kernels may fail on a row without tokens.
                staged[rows:, 0] = 1
            self._values[name].update_inplace(staged)
        self._clean = plain


class Bindings:
    """Caches the most recently used bindings, up to `max_bytes`.

    Each concurrent run of a session has its own cache.
    """

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
        """Never evict the binding of a shape, because a captured graph uses its addresses."""
        self._kept.add(key)

    def _evict(self, newest: BoundKey) -> None:
        for key in list(self._bound):
            if self.size_bytes <= self._max_bytes:
                return
            if key != newest and key not in self._kept:
                old = self._bound.pop(key)
                self.size_bytes -= old.size_bytes
                old.close()
