"""Runs batches on another server, by the Open Inference Protocol: only tensors travel."""

import time
import weakref
from typing import Any

import numpy as np
from typing_extensions import override

from backends.errors import ModelFailed, ModelProblem, UpstreamUnavailable
from backends.executors.base import ModelExecutor
from backends.executors.cost import CostModel, measure_cost
from backends.executors.graph import INPUTS, GraphSource
from backends.open_inference.address import ModelMetadata, Upstream
from backends.open_inference.client import UpstreamClient
from backends.open_inference.tensors import FLOATS, INTEGERS, decode, encode
from backends.types import FloatArray, IntArray, OutputKind

_LONGEST = 512
_TRIAL = 4
_OK = 200
# What a server says of a batch that it will not or cannot compute; anything else is its own state.
_OF_THE_BATCH = frozenset({400, 413, 422, 500})
_BINARY = "binary_tensor_data"


class UpstreamExecutor(ModelExecutor):
    """A model of another server; as many runs at a time as `upstream.runs` says."""

    def __init__(self, source: GraphSource, upstream: Upstream) -> None:
        """Ask the server for the model, run it once, and measure what batches take.

        Raises:
            ModelProblem: the server does not answer, or its model is no such encoder.
        """
        self._source = source
        self._upstream = upstream
        self._client = UpstreamClient(upstream)
        # Nobody ends an executor: what it keeps open goes with it.
        weakref.finalize(self, self._client.close)
        try:
            self._binary = _BINARY in self._client.server().extensions
            metadata = self._client.metadata()
            self._inputs = _check_inputs(metadata, upstream)
            _check_outputs(metadata, source, upstream)
            self._warm_up()
            self._cost = self._measure()
        except UpstreamUnavailable as error:
            raise ModelProblem(str(error)) from error

    @property
    @override
    def provider(self) -> str:
        return "OpenInferenceExecutionProvider"

    @property
    @override
    def lanes(self) -> int:
        return self._upstream.runs

    @property
    @override
    def dimensions(self) -> int:
        return self._source.dimensions

    @property
    @override
    def cost(self) -> CostModel:
        return self._cost

    @override
    def run(
        self, *, ids: IntArray, mask: IntArray, type_ids: IntArray, output: OutputKind
    ) -> FloatArray:
        given = dict(zip(INPUTS, (ids, mask, type_ids), strict=True))
        feeds: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
            name: (datatype, given[name].astype(INTEGERS[datatype], copy=False))
            for name, datatype in self._inputs.items()
        }
        name = self._source.outputs[output]
        reply = self._client.infer(*encode(feeds, name, binary=self._binary))
        if reply.status != _OK:
            raise self._explain(reply.status)
        outer = ids.shape if output is OutputKind.TOKENS else ids.shape[:1]
        return decode(reply, name, (*outer, self.dimensions))

    def _explain(self, status: int) -> ModelFailed | UpstreamUnavailable:
        """Tell a batch that cannot be computed from a server that computes none now."""
        if status in _OF_THE_BATCH and self._client.is_ready():
            return ModelFailed(f"{self._upstream} answers {status}")
        return UpstreamUnavailable(f"{self._upstream} answers {status}")

    def _warm_up(self) -> None:
        ids = np.ones((1, min(self._source.max_tokens or _TRIAL, _TRIAL)), dtype=np.int32)
        for output in self._source.outputs:
            try:
                self.run(ids=ids, mask=ids, type_ids=ids * 0, output=output)
            except ModelFailed as error:
                raise ModelProblem(f"{self._upstream}: a trial run failed: {error}") from error

    def _measure(self) -> CostModel:
        output = next(iter(self._source.outputs))

        def run(ids: IntArray, mask: IntArray) -> None:
            self.run(ids=ids, mask=mask, type_ids=np.zeros_like(ids), output=output)

        try:
            longest = self._source.max_tokens or _LONGEST
            return measure_cost(run, time.perf_counter, longest=longest)
        except ModelFailed:
            # It takes no batches of some of these shapes; what it takes is learnt at work.
            return CostModel()


def _check_inputs(metadata: ModelMetadata, upstream: Upstream) -> dict[str, str]:
    for tensor in metadata.inputs:
        if tensor.name not in INPUTS or tensor.datatype not in INTEGERS:
            raise ModelProblem(
                f"{upstream}: input `{tensor.name}` of {tensor.datatype} is none of an encoder's "
                f"integer inputs: {', '.join(INPUTS)}"
            )
    return {tensor.name: tensor.datatype for tensor in metadata.inputs}


def _check_outputs(metadata: ModelMetadata, source: GraphSource, upstream: Upstream) -> None:
    found = {tensor.name: tensor for tensor in metadata.outputs}
    for name in source.outputs.values():
        if name not in found:
            raise ModelProblem(f"{upstream}: it has no output `{name}`; it has {', '.join(found)}")
        tensor = found[name]
        if tensor.datatype not in FLOATS:
            raise ModelProblem(f"{upstream}: output `{name}` is {tensor.datatype}, no floats")
        width = tensor.shape[-1] if tensor.shape else -1
        if width not in (-1, source.dimensions):
            raise ModelProblem(
                f"{upstream}: output `{name}` is {width} wide, not "
                f"`dimensions: {source.dimensions}`"
            )
