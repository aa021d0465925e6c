"""Measures the cost of running a graph on Triton: with JSON, with raw bytes, and as a backend."""

import os
import time
from collections.abc import Callable, Iterator
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
from loadtests.backend import RunningBackend, backend, calls, run_closed
from loadtests.report import print_table
from loadtests.triton.server import ENCODER, WIDTH, Triton, graph_of
from loadtests.turns import in_turns
from loadtests.workload import sentences

_SHAPES = ((1, 12), (16, 32), (16, 128))
_OUTPUTS = {OutputKind.POOLED: "pooled", OutputKind.TOKENS: "tokens"}
_TIMEOUT = 30.0
_ROUNDS, _DURATION = 3, 4.0
_BATCHES = 30


def measure_backends(triton: Triton, models: Path, *, model: str) -> None:
    """Print the rates over HTTP of a backend on Triton and of a backend on our executor."""
    threads = str(len(os.sched_getaffinity(0)))
    # Both backends can get the same sentences, because neither of them has cached the other's
    # answers.
    texts = [sentences(20_000, seed=seed) for seed in range(200, 200 + _ROUNDS)]

    def ask(running: RunningBackend, rounds: Iterator[list[str]]) -> float:
        bodies = calls(next(rounds), running.model(model))
        return run_closed(running, bodies, connections=32, duration=_DURATION).rate

    with (
        backend(models, provider="open_inference", upstream_url=triton.url) as theirs,
        backend(models, threads=threads) as ours,
    ):
        ways = {"Triton runs the graph": theirs, "its own": ours}
        rates = in_turns(
            {name: partial(ask, each, iter(texts)) for name, each in ways.items()}, _ROUNDS
        )
    print()
    print_table(
        ("a backend over HTTP, 32 connections", "sentences/s", "runs"),
        [
            (name, f"{median(found):.0f}", ", ".join(f"{rate:.0f}" for rate in found))
            for name, found in rates.items()
        ],
    )


def measure_wire(triton: Triton, models: Path) -> None:
    """Print the times of batches sent as JSON, sent as raw bytes, and computed without Triton.

    Times are medians in milliseconds. The bytes of requests and replies are printed too.
    """
    client = UpstreamClient(RemoteModelServer(url=triton.url, model=ENCODER, timeout=_TIMEOUT))
    source = GraphSource(path=graph_of(models), outputs=_OUTPUTS, dimensions=WIDTH, max_tokens=256)
    executor = OnnxExecutor(source, worker_threads=1, wide=False)

    def line(rows: int, length: int, output: OutputKind) -> tuple[str, ...]:
        ids = np.random.default_rng(1).integers(1000, 20_000, (rows, length), dtype=np.int32)
        send = partial(_send, client, ids, output)
        ways: dict[str, Callable[[], object]] = {
            "JSON": partial(send, binary=False),
            "raw": partial(send, binary=True),
            "here": partial(executor.run, pad(list(ids), output)),
        }

        def spent(way: Callable[[], object]) -> float:
            started = time.perf_counter()
            way()
            return (time.perf_counter() - started) * 1000

        took = in_turns({name: partial(spent, way) for name, way in ways.items()}, _BATCHES)
        sizes = (send(binary=binary) / 1024 for binary in (False, True))
        return (
            *(f"{rows} x {length}", output.value),
            *(f"{median(spans):.1f}" for spans in took.values()),
            *(f"{size:.0f}" for size in sizes),
        )

    print()
    print_table(
        ("batch", "output", "JSON ms", "raw ms", "here ms", "JSON KiB", "raw KiB"),
        [line(*shape, output) for shape, output in product(_SHAPES, _OUTPUTS)],
    )
    client.close()


def _send(
    client: UpstreamClient, ids: NDArray[np.int32], output: OutputKind, *, binary: bool
) -> int:
    """Let Triton run a batch of full rows; return the bytes of request and reply."""
    tensors = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    feeds = {name: ("INT32", values) for name, values in tensors.items()}
    body, headers = encode(feeds, output.value, binary=binary, timeout=_TIMEOUT)
    reply = client.infer(body, headers, timeout=_TIMEOUT)
    shape = (*ids.shape, WIDTH) if output is OutputKind.TOKENS else (len(ids), WIDTH)
    decode(reply, output.value, shape)
    return len(body) + len(reply.body)
