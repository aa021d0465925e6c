"""Measures the cost of running a graph on Triton: tensors as JSON and raw, whole backends."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from backends.executors.base import ModelExecutor
from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import pad
from backends.open_inference.address import RemoteModelServer
from backends.open_inference.client import UpstreamClient
from backends.open_inference.tensors import decode, encode
from backends.types import OutputKind
from loadtests.backend import backend, calls, run_closed
from loadtests.triton.fleet import ENCODER, MODEL, WIDTH
from loadtests.triton.process import Triton
from loadtests.workload import sentences

_SHAPES = ((1, 12), (16, 32), (16, 128))
_TIMEOUT = 30.0
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class BackendThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Sentences per second of a backend on Triton and of one on our executor."""

    theirs: list[float]
    ours: list[float]


def measure_backends(
    triton: Triton, models: Path, *, rounds: int, duration: float
) -> BackendThroughput:
    """Measure both in turns, over HTTP; all processes are there all the time."""
    served = BackendThroughput(theirs=[], ours=[])
    threads = str(len(os.sched_getaffinity(0)))
    with (
        backend(models, provider="open_inference", upstream_url=triton.url) as theirs,
        backend(models, threads=threads) as ours,
    ):
        for seed in range(200, 200 + rounds):
            # The same sentences for both: neither knows what the other was asked.
            for running, found in ((theirs, served.theirs), (ours, served.ours)):
                bodies = calls(sentences(20_000, seed=seed), running.model(MODEL))
                outcome = run_closed(running, bodies, connections=32, duration=duration)
                found.append(outcome.rate)
    return served


class WireCost(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds per batch over the wire as JSON and raw, and run here; bytes both ways."""

    rows: int
    length: int
    output: OutputKind
    json: float
    raw: float
    here: float
    json_bytes: int
    raw_bytes: int


def measure_wire(triton: Triton, graph: Path, *, repeats: int) -> list[WireCost]:
    """Measure batches in turns: JSON, raw, here; medians."""
    client = UpstreamClient(RemoteModelServer(url=triton.url, model=ENCODER, timeout=_TIMEOUT))
    outputs = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
    source = GraphSource(path=graph, outputs=outputs, dimensions=WIDTH, max_tokens=256)
    executor = OnnxExecutor(source, worker_threads=1, wide=False)
    try:
        return [
            _measure(client, executor, rows, length, output, repeats)
            for rows, length in _SHAPES
            for output in outputs
        ]
    finally:
        client.close()


def _measure(
    client: UpstreamClient,
    executor: ModelExecutor,
    rows: int,
    length: int,
    output: OutputKind,
    repeats: int,
) -> WireCost:
    ids = np.random.default_rng(1).integers(1000, 20_000, (rows, length), dtype=np.int32)
    batch = dict(zip(_INPUTS, (ids, np.ones_like(ids), ids * 0), strict=True))
    shape = (rows, length, WIDTH) if output is OutputKind.TOKENS else (rows, WIDTH)
    sizes: dict[bool, int] = {}

    def send(*, binary: bool) -> None:
        feeds = {name: ("INT32", values) for name, values in batch.items()}
        body, headers = encode(feeds, output.value, binary=binary, timeout=_TIMEOUT)
        reply = client.infer(body, headers, timeout=_TIMEOUT)
        sizes[binary] = len(body) + len(reply.body)
        decode(reply, output.value, shape)

    padded = pad(list(ids), output)

    def run() -> None:
        executor.run(padded)

    took: dict[str, list[float]] = {"json": [], "raw": [], "here": []}
    ways: dict[str, Callable[[], None]] = {
        "json": lambda: send(binary=False),
        "raw": lambda: send(binary=True),
        "here": run,
    }
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            took[name].append((time.perf_counter() - started) * 1000)
    return WireCost(
        rows=rows,
        length=length,
        output=output,
        json=median(took["json"]),
        raw=median(took["raw"]),
        here=median(took["here"]),
        json_bytes=sizes[False],
        raw_bytes=sizes[True],
    )
