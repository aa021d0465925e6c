"""Runs an encoder graph with ONNX Runtime on the CPU."""

import numpy as np
from typing_extensions import override

from backends.errors import ModelFailed, ModelProblem
from backends.executors.base import ModelExecutor
from backends.executors.graph import INPUTS, GraphSource, check_outputs, read_inputs
from backends.executors.provider import DeviceOptions, open_session
from backends.types import FloatArray, IntArray, OutputKind


class OnnxExecutor(ModelExecutor):
    """One session whose runs use one intra-op thread: `lanes` threads run it side by side.

    ONNX Runtime's `run` is thread-safe and releases the interpreter's lock, and with one intra-op
    thread it works in the caller's: N callers are N narrow sessions over one copy of the weights.
    """

    def __init__(self, source: GraphSource, *, lanes: int) -> None:
        self._source = source
        self._lanes = lanes
        self._session = open_session(source.path, DeviceOptions(provider="cpu"))
        self._inputs = read_inputs(self._session, source.path)
        check_outputs(self._session, source)
        self._warm_up()

    @property
    @override
    def provider(self) -> str:
        name: str = self._session.get_providers()[0]
        return name

    @property
    @override
    def lanes(self) -> int:
        return self._lanes

    @property
    @override
    def dimensions(self) -> int:
        return self._source.dimensions

    @override
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        given = dict(zip(INPUTS, (ids, mask, type_ids), strict=True))
        feeds = {name: given[name].astype(kind) for name, kind in self._inputs.items()}
        try:
            (result,) = self._session.run([self._source.outputs[output]], feeds)
        except Exception as error:  # ONNX Runtime's errors have no common base but this one
            raise ModelFailed(f"ONNX Runtime failed with `{type(error).__name__}`") from error
        values: FloatArray = result if result.dtype == np.float32 else result.astype(np.float32)
        return values

    def _warm_up(self) -> None:
        """Run a row once, so that a graph that cannot answer is found before it is served."""
        ids = np.ones((1, 4), dtype=np.int32)
        for output in self._source.outputs:
            try:
                result = self.run(ids=ids, mask=ids, type_ids=ids * 0, output=output)
            except ModelFailed as error:
                raise ModelProblem(f"{self._source.path}: a trial run failed: {error}") from error
            if result.shape[-1] != self.dimensions:
                raise ModelProblem(
                    f"{self._source.path}: output `{self._source.outputs[output]}` is "
                    f"{result.shape[-1]} wide, not `dimensions: {self.dimensions}`"
                )
