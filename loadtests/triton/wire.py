"""Measures the cost of running a graph on Triton: tensors as JSON and raw, whole backends."""

import os
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from backends.executors.graph import GraphSource
from backends.executors.onnx import OnnxExecutor
from backends.executors.padded_batch import pad
from backends.open_inference.address import RemoteModelServer
from backends.open_inference.client import UpstreamClient
from backends.open_inference.tensors import decode, encode
from backends.types import OutputKind
from loadtests.backend import backend, calls, run_closed
from loadtests.triton.server import Triton
from loadtests.workload import sentences

_SHAPES = ((1, 12), (16, 32), (16, 128))
_OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
_TIMEOUT = 30.0
_ROUNDS, _DURATION = 3, 4.0


def measure_backends(triton: Triton, models: Path, *, model: str) -> None:
    """Print what a backend on Triton and one on our executor answer in turns, over HTTP."""
    rates: dict[str, list[float]] = {"Triton runs the graph": [], "its own": []}
    threads = str(len(os.sched_getaffinity(0)))
    with (
        backend(models, provider="open_inference", upstream_url=triton.url) as theirs,
        backend(models, threads=threads) as ours,
    ):
        for seed in range(200, 200 + _ROUNDS):
            # The same sentences for both: neither knows what the other was asked.
            for running, found in zip((theirs, ours), rates.values(), strict=True):
                bodies = calls(sentences(20_000, seed=seed), running.model(model))
                outcome = run_closed(running, bodies, connections=32, duration=_DURATION)
                found.append(outcome.rate)
    print("\n| a backend over HTTP, 32 connections | sentences/s | runs |\n|---|---|---|")
    for name, found in rates.items():
        print(f"| {name} | {median(found):.0f} | {', '.join(f'{rate:.0f}' for rate in found)} |")


def measure_wire(triton: Triton, graph: Path, *, model: str, width: int, repeats: int) -> None:
    """Print what batches take in turns, as JSON, raw, and here: medians in ms, bytes both ways."""
    client = UpstreamClient(RemoteModelServer(url=triton.url, model=model, timeout=_TIMEOUT))
    source = GraphSource(path=graph, outputs=_OUTPUTS, dimensions=width, max_tokens=256)
    executor = OnnxExecutor(source, worker_threads=1, wide=False)
    print("\n| batch | output | JSON ms | raw ms | here ms | JSON KiB | raw KiB |")
    print("|---|---|---|---|---|---|---|")
    for (rows, length), output in product(_SHAPES, _OUTPUTS):
        ids = np.random.default_rng(1).integers(1000, 20_000, (rows, length), dtype=np.int32)
        send = partial(_send, client, ids, output, width)
        here = partial(executor.run, pad(list(ids), output))
        ways: tuple[Callable[[], object], ...] = (
            partial(send, binary=False),
            partial(send, binary=True),
            here,
        )
        took: list[list[float]] = [[], [], []]
        for _ in range(repeats):
            for way, spans in zip(ways, took, strict=True):
                started = time.perf_counter()
                way()
                spans.append((time.perf_counter() - started) * 1000)
        times = " | ".join(f"{median(spans):.1f}" for spans in took)
        sizes = " | ".join(f"{send(binary=binary) / 1024:.0f}" for binary in (False, True))
        print(f"| {rows} x {length} | {output.value} | {times} | {sizes} |")
    client.close()


def _send(
    client: UpstreamClient,
    ids: NDArray[np.int32],
    output: OutputKind,
    width: int,
    *,
    binary: bool,
) -> int:
    """Have Triton run a batch of full rows; return the bytes of request and reply."""
    tensors = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    feeds = {name: ("INT32", values) for name, values in tensors.items()}
    body, headers = encode(feeds, output.value, binary=binary, timeout=_TIMEOUT)
    reply = client.infer(body, headers, timeout=_TIMEOUT)
    shape = (*ids.shape, width) if output is OutputKind.TOKENS else (len(ids), width)
    decode(reply, output.value, shape)
    return len(body) + len(reply.body)
