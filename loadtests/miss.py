"""Measures distinct sentences per second through the model, beside the bare session."""

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import click
import msgspec
import numpy as np
import tokenizers

from backends.cores import usable_cores
from backends.model_tools.demo.build import build_demo_models
from backends.protocol import (
    CALL_PATH,
    Call,
    CallItem,
    ClassifyParameters,
    ModelInfo,
    ServingState,
    Task,
)
from loadtests.generator import Outcome, Target, closed_loop
from loadtests.machine import pin, resident_mib, this_machine
from loadtests.options import connections, rounds
from loadtests.padded import write_padded
from loadtests.report import rows, show
from loadtests.workload import sentences
from testing.system import TWO_REGIONS, System

_BATCH = 8
_BARE = tuple(f"bare session, {form}, sorted, batches of {_BATCH}" for form in ("served", "padded"))
_MODEL = "sentiment"
_MODEL_CORE, _OTHER_CORE = 0, 1


@click.command()
@connections
@click.option("--count", default=3000, help="Sentences of each run.")
@rounds(3)
@click.option("--one-core", is_flag=True, help="The model has a core, the rest another.")
@click.option("--two-backends", is_flag=True, help="Serve two regions instead of one.")
def measure(
    *, connections: int, count: int, rounds: int, one_core: bool, two_backends: bool
) -> None:
    """Measure the bare session, a backend over HTTP and the gateway in turns; print the table.

    The bare session runs the served graph and the padded one; the quicker is the baseline.
    With `one_core` the model has a core to itself, and everything else the other. The gateway has a
    backend with all cores or, with `two_backends`, one in each of two regions, which share them.
    """
    texts = sentences(count * rounds * 2, seed=2)
    measured: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        padded = write_padded(root / "padded.onnx")
        build_demo_models(root / "models", print)
        arguments = TWO_REGIONS if two_backends else ()
        with System(root / "data", models=root / "models", arguments=arguments) as system:
            served = root / "models" / "minilm" / "1" / "model.onnx"
            backend = system.processes("backend")[0].address or ""
            info = asyncio.run(_model(backend))
            if one_core:
                pin((p.pid for p in system.processes() if p.role == "backend"), _MODEL_CORE)
                pin((p.pid for p in system.processes() if p.role != "backend"), _OTHER_CORE)
            for number in range(rounds):
                own = texts[number * count * 2 :][: count * 2]
                runs = {
                    _BARE[0]: _bare(root / "models", served, own[:count], one_core=one_core),
                    _BARE[1]: _bare(root / "models", padded, own[:count], one_core=one_core),
                    "a backend over HTTP": _loop(
                        _backend_target(backend), _calls(own[:count], info), connections
                    ),
                    "through the gateway": _loop(
                        _gateway_target(system), _requests(own[count:]), connections
                    ),
                }
                for what, outcome in runs.items():
                    measured.setdefault(what, []).append(outcome)
            used = {
                f"{process.role} {process.region or process.index}": resident_mib(process.pid)
                for process in system.processes()
            }
    measured = _quicker_first(measured)
    show(
        f"Misses on {'one core' if one_core else 'all cores'}: {connections} connections",
        rows(measured),
        used,
        this_machine(),
    )


def _loop(target: Target, bodies: Iterator[bytes], connections: int) -> Outcome:
    return asyncio.run(closed_loop(target, bodies, connections=connections, duration=120))


def _quicker_first(measured: dict[str, list[Outcome]]) -> dict[str, list[Outcome]]:
    """Put the bare session with the better median first: the others are held against it."""
    rates = {what: median(run.rate for run in measured[what]) for what in _BARE}
    best = max(rates, key=rates.__getitem__)
    return {best: measured[best], **measured}


def _bare(models: Path, graph: Path, texts: list[str], *, one_core: bool) -> Outcome:
    """Run a graph alone: like lengths together, a one-thread session for each core."""
    if one_core:
        pin([os.getpid()], _MODEL_CORE)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415 - only after its telemetry is off

    folder = models / "minilm" / "1"
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    encoded = sorted((e.ids for e in tokenizer.encode_batch_fast(texts)), key=len)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    cores = 1 if one_core else usable_cores()
    sessions = [
        onnxruntime.InferenceSession(
            str(graph),
            options,
            providers=["CPUExecutionProvider"],
            disabled_optimizers=["SkipLayerNormFusion"],  # as the backend: slower on a CPU
        )
        for _ in range(cores)
    ]
    batches = [_arrays(encoded[at : at + _BATCH]) for at in range(0, len(encoded), _BATCH)]

    def run(number: int) -> None:
        for batch in itertools.islice(batches, number, None, cores):
            sessions[number].run(["pooled"], batch)

    started = time.perf_counter()
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(run, range(cores)))
    took = time.perf_counter() - started
    if one_core:
        pin([os.getpid()], _OTHER_CORE)
    return Outcome(duration=took, statuses={}, latencies=[took / len(texts)] * len(texts))


def _arrays(batch: list[list[int]]) -> dict[str, np.ndarray]:
    width = max(map(len, batch))
    ids = np.zeros((len(batch), width), np.int32)
    mask = np.zeros_like(ids)
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


async def _model(address: str) -> ModelInfo:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/state HTTP/1.0\r\n\r\n")
    _, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    state = msgspec.msgpack.decode(body, type=ServingState)
    return next(model for model in state.models if model.name == _MODEL)


def _calls(texts: list[str], info: ModelInfo) -> Iterator[bytes]:
    parameters = msgspec.msgpack.encode(ClassifyParameters())
    for text in texts:
        item = CallItem(body=msgspec.msgpack.encode(text), remaining=30.0, scope="tenant:bench")
        call = Call(
            model=_MODEL,
            revision=info.revision,
            profile=info.profile,
            task=Task.CLASSIFY,
            parameters=parameters,
            items=[item],
        )
        yield msgspec.msgpack.encode(call)


def _requests(texts: list[str]) -> Iterator[bytes]:
    for text in texts:
        yield msgspec.json.encode({"model": _MODEL, "input": text})


def _backend_target(address: str) -> Target:
    host, _, port = address.removeprefix("http://").partition(":")
    return Target(host=host, port=int(port), path=CALL_PATH)


def _gateway_target(system: System) -> Target:
    headers = (("authorization", f"Bearer {system.key}"),)
    return Target(host="127.0.0.1", port=system.port, path="/v1/classify", headers=headers)
