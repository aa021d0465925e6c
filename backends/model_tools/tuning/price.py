"""Measures what a model costs on this machine: its load, its memory, and its rows a second.

The measurement runs in a new process, because a process that has built a graph holds the memory of
its weights. It loads the model as a backend does, and sends texts as concurrent callers do.
"""

import asyncio
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.model_tools.tuning.memory import resident_bytes
from sluicegate.backends.model_tools.tuning.sweep import Point, sweep_clients
from sluicegate.backends.qualification.golden_texts import default_texts
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import (
    BackendSettings,
    limit_blas_threads,
    quiet_libraries,
    read_settings,
)
from sluicegate.wire.protocol import PARAMETERS, AnswerItem, ChooseItem, EmbedItem, Task

# The lengths of a short sentence and of a paragraph.
LENGTHS = (16, 128)
_SECONDS = 1.0
_DEADLINE = 300.0
# Enough callers to fill the batches of each thread.
_CALLERS = 16
_TEXTS = 64
# The most tokens of the second text.
_ONE_WORD = 2
_MIB = 1 << 20


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the rows of `tokens` tokens that the machine computes in a second."""

    tokens: int
    rows_per_second: float


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Holds what a model costs: seconds of its load with all checks, bytes, and rates.

    `memory_bytes` is the host memory that a backend's process takes more than before it loaded the
    model; the memory of a GPU is not in it.
    `load_average` counts the processes that wanted to run on the machine before the measurement.
    """

    load: float
    memory_bytes: int
    load_average: float
    threads: int
    rates: list[Rate]


def measure_price(root: Path, name: str, *, deadline: float = _DEADLINE) -> Price:
    """Return the price of the newest revision of a model in the repository `root`.

    Raises:
        StartProblem: the process fails, or takes longer than `deadline` seconds.
    """
    # With `-P`, modules in the current folder, which may be a checkpoint, are not imported.
    command = [sys.executable, "-P", "-m", __name__, str(root), name]
    try:
        ran = subprocess.run(command, capture_output=True, check=True, timeout=deadline)  # noqa: S603 - our own module
        return msgspec.json.decode(ran.stdout, type=Price)
    except subprocess.TimeoutExpired:
        raise StartProblem(f"the measurement took longer than {deadline:g} s") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no reason"])[-1]
        raise StartProblem(f"the measurement failed: {last}") from None
    except (OSError, msgspec.DecodeError) as error:
        raise StartProblem(f"the measurement failed: {error}") from None


def describe_price(price: Price) -> list[str]:
    """Return the lines that show a price."""
    rates = "; ".join(
        f"{rate.rows_per_second:,.0f} rows/s of {rate.tokens} tokens" for rate in price.rates
    )
    memory = f"{price.memory_bytes / _MIB:,.0f} MiB of host memory"
    busy = f"the machine was busy (load average {price.load_average:.0f}): `models tune` when idle"
    return [
        f"{rates} ({price.threads} threads)",
        f"loads in {price.load:.1f} s with all checks, and takes {memory}",
        # One process is the import itself.
        *([busy] if price.load_average > price.threads + 1 else []),
    ]


async def _measure(settings: BackendSettings, name: str) -> Price:
    # The runtime's own memory is no model's.
    importlib.import_module("onnxruntime")
    model = read_catalogue(settings.models).models[name]
    tokenizer = Tokenizer.from_file(str(model.file("tokenizer.json")))
    busy, before, began = os.getloadavg()[0], resident_bytes(), time.perf_counter()
    async with open_model(settings, name) as entry:
        load = time.perf_counter() - began
        most = entry.served_model.info.max_tokens
        lengths = sorted({min(length, most) for length in LENGTHS})
        pairs = bool({Task.CHOOSE, Task.RERANK, Task.ANSWER} & {*entry.served_model.info.tasks})
        rates = [
            await _rate(
                entry, tokens, _texts(tokenizer, tokens, pairs=pairs), settings.worker_threads
            )
            for tokens in lengths
        ]
        memory = resident_bytes() - before
    return Price(
        load=load,
        memory_bytes=memory,
        load_average=busy,
        threads=settings.worker_threads,
        rates=rates,
    )


async def _rate(entry: ModelSetEntry, tokens: int, texts: Sequence[str], threads: int) -> Rate:
    info = entry.served_model.info
    task = Task(info.tasks[0])
    kind: Any = PARAMETERS[task]
    own: dict[Task, dict[str, Any]] = {
        Task.RERANK: {"query": "a"},
        Task.ENTITIES: {} if info.labels else {"labels": ["a"]},
    }
    parameters = kind(**own.get(task, {}))
    rows = 2 if task is Task.CHOOSE else 1

    async def send(text: Any, caller: int) -> object:
        item = _item(task, text, info.outputs)
        return await answer(entry, task, item, parameters, scope=f"client-{caller}")

    nothing = Point(batch_size=1, threads=threads, rows_per_second=0, p95=0)
    (point,) = await sweep_clients(send, texts, clients=[_CALLERS], best=nothing, seconds=_SECONDS)
    return Rate(tokens=tokens, rows_per_second=rows * point.rows_per_second)


def _item(task: Task, text: str, outputs: Sequence[Any]) -> Any:
    if task is Task.CHOOSE:
        return ChooseItem(prompt=text, choices=["a", "b"])
    if task is Task.ANSWER:
        return AnswerItem(question="a", context=text)
    if task is Task.EMBED and outputs and outputs[0] != "dense":
        return EmbedItem(input=text, output=outputs[0])
    return text


def _texts(tokenizer: Tokenizer, tokens: int, *, pairs: bool) -> list[str]:
    """Return different texts that make rows of at most `tokens` tokens, and hardly fewer.

    With `pairs`, a row has room for a second text of one word.
    """
    words = " ".join(default_texts()).split()
    added = tokenizer.num_special_tokens_to_add(is_pair=pairs)
    room = max(1, tokens - added - (_ONE_WORD if pairs else 0))
    found = []
    for number in range(_TEXTS):
        text = " ".join(words[number * 7 :][: tokens * 2])
        ends = tokenizer.encode(text, add_special_tokens=False).offsets[:room]
        found.append(text[: ends[-1][1]] if ends else text)
    return found


def _main(root: str, name: str) -> None:
    settings = read_settings(models=Path(root))
    # Without caches, each text is computed.
    settings = msgspec.structs.replace(settings, row_cache_bytes=0)
    price = asyncio.run(_measure(settings, name))
    sys.stdout.buffer.write(msgspec.json.encode(price))


if __name__ == "__main__":
    quiet_libraries()
    limit_blas_threads()
    try:
        _main(sys.argv[1], sys.argv[2])
    except StartProblem as error:
        sys.exit(str(error))
    except BaseExceptionGroup as error:  # of the callers, who fail alike
        sys.exit(str(error.exceptions[0]))
