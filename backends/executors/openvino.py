"""Runs an encoder graph with OpenVINO on the CPU, in fp32 or in bf16."""

import time
from queue import LifoQueue
from typing import Any

import numpy as np
from typing_extensions import override

from sluicegate.backends.errors import ModelFailed
from sluicegate.backends.executors.base import ModelExecutor
from sluicegate.backends.executors.buckets import Buckets
from sluicegate.backends.executors.graph import GraphSource, check_graph, read_inputs
from sluicegate.backends.executors.onnx import explain
from sluicegate.backends.executors.openvino_graph import compile_graph
from sluicegate.backends.executors.padded_batch import PaddedBatch
from sluicegate.backends.executors.trial_runs import open_cost
from sluicegate.backends.types import FloatArray, OutputKind

_LENGTH_MULTIPLE, _LENGTH_STEPS = 4, 4


class OpenVinoExecutor(ModelExecutor):
    """Runs one compiled graph, with up to `worker_threads` concurrent runs of one thread each.

    Each run has its own infer request, which owns its output arrays. All infer requests share the
    weights. OpenVINO generates and keeps kernels for each new shape. To limit the number of shapes,
    lengths are rounded up to buckets. This costs little, because OpenVINO's graph skips padding.
    """

    provider = "OpenVINOExecutionProvider"
    shares_cores = True

    def __init__(self, source: GraphSource, *, worker_threads: int) -> None:
        self._source = source
        self.worker_threads = worker_threads
        self.dimensions, self.joined = source.dimensions, source.joined
        graph = compile_graph(source, threads=worker_threads)
        self._inputs = read_inputs(graph, source.path)
        check_graph(graph, source)
        self._vocabulary = graph.vocabulary
        self._buckets = Buckets(
            length_multiple=_LENGTH_MULTIPLE,
            length_steps=_LENGTH_STEPS,
            max_length=source.max_tokens,
        )
        self._requests: LifoQueue[Any] = LifoQueue()
        for _ in range(worker_threads):
            self._requests.put(graph.model.create_infer_request())
        # OpenVINO computes in its own thread, so measure process time, which excludes other
        # processes.
        self.cost = open_cost(self, source, time.process_time)

    @override
    def run(self, batch: PaddedBatch) -> FloatArray:
        length = batch.ids.shape[1]
        given = _widened(batch, self._buckets.fit(*batch.ids.shape).length).by_input()
        if self._vocabulary is not None and int(batch.ids.max()) >= self._vocabulary:
            raise ModelFailed("a token id is outside the model's vocabulary")
        feeds = {name: given[name].astype(kind, copy=False) for name, kind in self._inputs.items()}
        request = self._requests.get()
        try:
            results = request.infer(feeds, share_inputs=True, share_outputs=True)
            values = results[self._source.outputs[batch.output]]
            if batch.output is OutputKind.TOKENS:
                values = values[:, :length]
            elif batch.output is OutputKind.JOINED:
                values = values[:, : self.joined.of(length)]
            # Copy, because the next run reuses the request's arrays.
            return np.array(values, dtype=np.float32)
        except Exception as error:  # OpenVINO's errors only share the base `Exception`
            raise explain(error, "OpenVINO") from error
        finally:
            self._requests.put(request)


def _widened(batch: PaddedBatch, length: int) -> PaddedBatch:
    """Return a batch with its rows padded to `length`."""
    rows, before = batch.ids.shape
    if length == before:
        return batch
    ids, mask, types = np.zeros((3, rows, length), dtype=np.int32)
    ids[:, :before], mask[:, :before] = batch.ids, batch.mask
    types[:, :before] = batch.type_ids
    return PaddedBatch(ids=ids, mask=mask, type_ids=types, output=batch.output)
