"""Measures the processor time of sparse vectors and token vectors, relative to dense vectors."""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any  # Any: items of the task `embed`

import click
import numpy as np
from onnx import ModelProto

from loadtests.backend import RunningBackend, backend, call
from loadtests.generator import OK, Outcome, run_closed
from loadtests.machine import processor_seconds
from loadtests.measured import demo_models
from loadtests.models import copy_model
from loadtests.options import rounds
from loadtests.report import Line, milliseconds, show
from loadtests.turns import in_turns, paired
from loadtests.workload import sentences
from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.graphs.checkpoint import build_checkpoint
from sluicegate.backends.model_tools.graphs.weights import Weights, read_safetensors
from sluicegate.backends.model_tools.importing.output_graph import (
    add_joined,
    add_projection,
    add_splade,
)
from sluicegate.backends.repository.sentence_modules import DenseModule, SpladeModule
from sluicegate.wire.protocol import EmbedItem, ModelInfo, Task

_DENSE, _SEVERAL, _LATE, _WORDS = "minilm", "bench-several", "bench-late", "bench-words"
_HIDDEN, _PROJECTED = 384, 128
_LATE_LAYER = DenseModule(
    folder="head",
    inputs=_HIDDEN,
    outputs=_PROJECTED,
    bias=False,
    activation="torch.nn.modules.linear.Identity",
)
Items = Callable[[str], list[Any]]


def _item(output: Any, **fields: Any) -> Callable[[str], EmbedItem]:
    return lambda text: EmbedItem(input=text, output=output, **fields)


def _all(text: str) -> list[Any]:
    return [text, _item("sparse")(text), _item("multi_vector")(text)]


_VARIANTS: dict[str, tuple[str, Items]] = {
    "dense": (_DENSE, lambda text: [text]),
    "dense, of the model with three outputs": (_SEVERAL, lambda text: [text]),
    "sparse, of the model with three outputs": (_SEVERAL, lambda text: [_item("sparse")(text)]),
    "dense and sparse": (_SEVERAL, lambda text: _all(text)[:2]),
    "dense, sparse and token vectors": (_SEVERAL, _all),
    "token vectors": (_LATE, lambda text: [_item("multi_vector")(text)]),
    "token vectors, pooled by 2": (
        _LATE,
        lambda text: [_item("multi_vector", pool_factor=2)(text)],
    ),
    "words": (_WORDS, lambda text: [_item("sparse")(text)]),
}


@click.command("outputs")
@click.option("--count", default=50, help="Number of texts in each run.")
@click.option("--words", default=100, help="Words of a text; nearly each is one token.")
@rounds(5)
def measure(*, count: int, words: int, rounds: int) -> None:
    """Compare the processor time of each output of a text with that of the dense vector alone."""
    fresh = _texts(words)
    with demo_models() as models:
        _write_models(models)
        with backend(models) as running:
            infos = {name: running.model(name) for name, _ in _VARIANTS.values()}

            def run(name: str, items: Items, number: int = count) -> float:
                texts = list(itertools.islice(fresh, number))
                return _seconds(running, infos[name], items, texts)

            repeated = list(itertools.islice(fresh, count))
            again = partial(_seconds, running, infos[_SEVERAL], _all, repeated)
            variants = {what: partial(run, *each) for what, each in _VARIANTS.items()}
            variants["all of a repeated text"] = again
            for each in variants.values():
                each()
            turns = in_turns(variants, rounds)
    dense = turns["dense"]
    rows: list[Line] = [
        {
            "outputs": what,
            "ms a text": milliseconds(median(seconds) / count),
            "of dense": f"{paired(seconds, dense):.2f}",
        }
        for what, seconds in turns.items()
    ]
    show(f"Outputs: processor time of a backend, {words} words a text", rows)


def _seconds(running: RunningBackend, info: ModelInfo, items: Items, texts: list[str]) -> float:
    """Return the processor time of a backend for the items of these texts, one call for each."""
    before = processor_seconds(running.pid)
    bodies = (call(items(text), info, task=Task.EMBED) for text in texts)
    found: Outcome = run_closed(running.target, bodies, connections=4)
    if found.statuses != {OK: len(texts)}:
        raise ValueError(f"the backend answered {found.statuses}")
    return processor_seconds(running.pid) - before


def _texts(words: int) -> Iterator[str]:
    """Yield texts of so many words."""
    every = itertools.chain.from_iterable(sentences(1000, seed=seed) for seed in itertools.count())
    stream = itertools.chain.from_iterable(map(str.split, every))
    while True:
        yield " ".join(itertools.islice(stream, words))


def _write_models(models: Path) -> None:
    """Write variants of the demo encoder with random heads."""
    source, random = find_source(), np.random.default_rng(35)
    config = json.loads((source / "config.json").read_bytes())
    weights = read_safetensors(source / "model.safetensors")

    def layer(outputs: int) -> Weights:
        matrix = random.standard_normal((outputs, _HIDDEN)).astype(np.float32) / _HIDDEN**0.5
        return {"weight": matrix, "bias": np.zeros(outputs, dtype=np.float32)}

    several = build_checkpoint(config, weights)
    add_joined(several, tokens="tokens", pooled="pooled", vectors=layer(_HIDDEN), sparse=layer(1))
    _write(
        models,
        _SEVERAL,
        several,
        outputs={"pooled": "pooled", "joined": "joined"},
        sparse={"skipped": [0, 101, 102]},
        multi_vector={"dimensions": _HIDDEN, "leading": 1},
    )
    late = build_checkpoint(config, weights)
    projection = {"linear.weight": layer(_PROJECTED)["weight"]}
    add_projection(late, [(_LATE_LAYER, projection)], tokens="tokens", width=_HIDDEN)
    _write(
        models,
        _LATE,
        late,
        outputs={"tokens": "vectors"},
        dimensions=_PROJECTED,
        multi_vector={"dimensions": _PROJECTED},
    )
    words = build_checkpoint(config, weights)
    dense = layer(_HIDDEN)
    head = {f"cls.predictions.transform.dense.{name}": each for name, each in dense.items()}
    head["cls.predictions.transform.LayerNorm.weight"] = np.ones(_HIDDEN, dtype=np.float32)
    head["cls.predictions.transform.LayerNorm.bias"] = np.zeros(_HIDDEN, dtype=np.float32)
    vocabulary = add_splade(
        words,
        SpladeModule(strategy="max", doubles_log=False),
        {**weights, **head},
        config,
        tokens="tokens",
    )
    _write(
        models,
        _WORDS,
        words,
        outputs={"pooled": "pooled"},
        dimensions=vocabulary,
        sparse={"vocabulary": vocabulary},
    )


def _write(models: Path, name: str, model: ModelProto, **changes: Any) -> None:
    copy_model(models, _DENSE, name, **changes)
    folder = models / name / "1"
    for old in folder.glob("*.onnx"):
        old.unlink()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
