"""Runs batches on another server over the Open Inference Protocol."""

import math
import time
import weakref
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.errors import (
    BackendError,
    ModelProblem,
    Overloaded,
    UpstreamFailed,
    UpstreamUnavailable,
)
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.cost import CostModel, measure_cost
from sluicegate.backends.executors.failure_detector import FailureDetector
from sluicegate.backends.executors.graph import GraphSource, check_adapters
from sluicegate.backends.executors.padded_batch import INPUTS, PaddedBatch, ones
from sluicegate.backends.open_inference.address import ModelMetadata, RemoteModelServer
from sluicegate.backends.open_inference.client import Reply, UpstreamClient
from sluicegate.backends.open_inference.tensors import FLOATS, INTEGERS, decode, encode
from sluicegate.backends.types import FloatArray, OutputKind

_TRIAL_TOKENS = 4
_AXES = 2  # rows, tokens
_OK, _TOO_MANY, _UNAVAILABLE = 200, 429, 503
# With these statuses, either the batch is at fault or the server is broken. The server's readiness
# tells which.
_BATCH_STATUSES = frozenset({400, 413, 422, 500})
_RETRY_AFTER = 0.1
_BINARY, _CONFIGURATION = "binary_tensor_data", "model_configuration"


class UpstreamExecutor(ModelExecutor):
    """Runs a model of another server, with up to `upstream.runs` concurrent runs."""

    def __init__(
        self, source: GraphSource, upstream: RemoteModelServer, *, token: str = ""
    ) -> None:
        """Read the model's metadata, run the model once, and measure the time of batches.

        Raises:
            ModelProblem: the server does not answer, or its model does not match `source`.
        """
        self._source = source
        self._upstream = upstream
        self._client = UpstreamClient(upstream, token=token)
        # Executors have no `close`, so garbage collection of the executor closes the connections.
        weakref.finalize(self, self._client.close)
        self._version: str | None = None
        self.provider = "OpenInferenceExecutionProvider"
        self.worker_threads = upstream.runs
        self.dimensions, self.joined = source.dimensions, source.joined
        self.cost = CostModel()
        self._failures = FailureDetector(time.monotonic)
        try:
            extensions = self._client.server().extensions
            self._binary = _BINARY in extensions
            metadata = self._client.metadata()
            self._inputs = _check_inputs(metadata, upstream)
            check_adapters(self._inputs, source)
            _check_outputs(metadata, source, upstream)
            self.most_rows = self._declared_rows(metadata, extensions)
            for output in source.outputs:
                self._run_trial(output, math.inf)
            self.cost = measure_cost(source, self.run, time.perf_counter, most_rows=self.most_rows)
        except BackendError as error:
            raise ModelProblem(f"{upstream}: a trial run failed: {error}") from error

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        return self.run_within(math.inf, batch)

    @override
    def run_within(self, time_left: float, batch: PaddedBatch) -> FloatArray:
        given = batch.by_input()
        feeds: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
            name: (datatype, given[name].astype(INTEGERS[datatype], copy=False))
            for name, datatype in self._inputs.items()
        }
        name = self._source.outputs[batch.output]
        timeout = min(time_left, self._upstream.timeout)
        rows, longest = batch.ids.shape
        expected = self.cost.seconds(rows=rows, longest=longest, tokens=rows * longest)
        outer = (rows, longest) if batch.output is OutputKind.TOKENS else (rows,)
        with self._failures.run(expected):
            body, headers = encode(feeds, name, binary=self._binary, timeout=timeout)
            reply = self._client.infer(body, headers, timeout=timeout)
            if reply.status != _OK:
                raise self._error_of(reply)
            width = self._source.width(batch.output, longest)
            values, version = decode(reply, name, (*outer, width))
            self._check_version(version)
        return values

    def is_well(self) -> bool:
        """Return whether the server works.

        If runs have failed or are late, this method sends a trial batch.
        """
        if not self._failures:
            return True
        try:
            self._run_trial(self._source.first_output, self._failures.max_wait)
        except Overloaded:
            return True
        except BackendError:
            return False
        return True

    def _check_version(self, version: str | None) -> None:
        """Refuse a response whose model version differs from the version in the first response."""
        self._version = self._version or version
        if version and version != self._version:
            raise UpstreamUnavailable(
                f"{self._upstream.title} has changed its model from version {self._version} to "
                f"{version}"
            )

    def _error_of(self, reply: Reply) -> BackendError:
        """Map an error response to a failed batch, a busy server or a broken server."""
        answer = f"{self._upstream.title} answers {reply.status}"
        if reply.status == _TOO_MANY or (reply.status == _UNAVAILABLE and self._client.is_ready()):
            return Overloaded(
                f"{answer}: it is busy", retry_after=reply.retry_after or _RETRY_AFTER
            )
        if reply.status in _BATCH_STATUSES and self._client.is_ready():
            return UpstreamFailed(answer)
        return UpstreamUnavailable(answer)

    def _declared_rows(self, metadata: ModelMetadata, extensions: list[str]) -> int | None:
        """Return the maximum rows of a batch, from input shapes and Triton's `max_batch_size`."""
        batches = {tensor.shape[0] for tensor in metadata.inputs}
        if batches == {1}:
            return 1
        if batches != {-1}:
            raise ModelProblem(
                f"{self._upstream}: its inputs take exactly {sorted(batches)} rows; serve the "
                "model with a variable batch size, or with 1"
            )
        if _CONFIGURATION not in extensions:
            return None
        return self._client.config().max_batch_size or None

    def _run_trial(self, output: OutputKind, time_left: float) -> None:
        length = min(self._source.max_tokens or _TRIAL_TOKENS, _TRIAL_TOKENS)
        self.run_within(time_left, ones(1, length, output))


def _check_inputs(metadata: ModelMetadata, upstream: RemoteModelServer) -> dict[str, str]:
    for tensor in metadata.inputs:
        if tensor.name not in INPUTS or tensor.datatype not in INTEGERS:
            raise ModelProblem(
                f"{upstream}: input `{tensor.name}` of type {tensor.datatype} is not supported; "
                f"all inputs must be integers named {', '.join(INPUTS)}"
            )
        if len(tensor.shape) != _AXES or tensor.shape[1] != -1:
            raise ModelProblem(
                f"{upstream}: input `{tensor.name}` has the shape {tensor.shape}; the model must "
                "take rows of any length: [-1, -1]"
            )
    if "input_ids" not in {tensor.name for tensor in metadata.inputs}:
        raise ModelProblem(f"{upstream}: the model has no input `input_ids`")
    return {tensor.name: tensor.datatype for tensor in metadata.inputs}


def _check_outputs(
    metadata: ModelMetadata, source: GraphSource, upstream: RemoteModelServer
) -> None:
    found = {tensor.name: tensor for tensor in metadata.outputs}
    for name in source.outputs.values():
        if name not in found:
            raise ModelProblem(
                f"{upstream}: the model has no output `{name}`; it has {', '.join(found)}"
            )
        tensor = found[name]
        if tensor.datatype not in FLOATS:
            raise ModelProblem(
                f"{upstream}: output `{name}` has type {tensor.datatype}; it must be a float"
            )
        width = tensor.shape[-1] if tensor.shape else -1
        if width not in (-1, source.dimensions):
            raise ModelProblem(
                f"{upstream}: output `{name}` is {width} wide, not "
                f"`dimensions: {source.dimensions}`"
            )
