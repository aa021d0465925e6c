"""Lists what is measured on a GPU, the most important figures first, and the options of a run."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from backends.executors.buckets import Shape
from backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from backends.model_tools.graphs.shapes import PRESETS, BertShape
from backends.settings import Provider
from wire.cores import usable_cores


class Section(NamedTuple):
    """A section's module, and its time in seconds, which includes the start of its process.

    Only the section's process imports the module, because sections need different packages.
    """

    seconds: float
    module: str


SECTIONS: Mapping[str, Section] = MappingProxyType(
    {
        "check": Section(90, "correctness"),
        "gateway-small": Section(130, "full_path"),
        "gateway-large": Section(150, "full_path"),
        "session": Section(150, "sessions"),
        "pytorch": Section(50, "torch_side"),
        "tensorrt": Section(90, "sessions"),
        "engine": Section(65, "full_path"),
        "peer": Section(50, "torch_side"),
    }
)
LARGE, SMALL = "bert-base", "minilm-l6"
BATCHES: Mapping[str, int] = MappingProxyType({SMALL: 24, LARGE: 128})
"""The number of tokens in a row, by model."""
FULL_BATCH, BATCH_TOKENS = 256, 32_768
OUT_OF_MEMORY, TWO_PROCESSES = "out of memory", "two processes on one device"
MATRIX, BANDWIDTH = "matrix rate, operations/s", "bandwidth, bytes/s read and written"
_IN_FLIGHT = (2, 3)
_OTHER_ROWS = (1, 8, 64, 1024)
_TINY = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=2000, positions=64)
# The gateway's share of the processor time of an item.
_GATEWAY_SHARE = 3 / 8


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a model: a kind of graph, and the attention kernels that it may use."""

    form: GraphOptions
    kernels: int = 0
    graphs: bool = False

    @property
    def name(self) -> str:
        """The name of the candidate in tables."""
        kernels = f"-k{self.kernels}" if self.kernels else ""
        return f"{self.form.precision}-{self.form.attention}{kernels}"


def _candidate(precision: Precision, attention: Attention, kernels: int = 0) -> Candidate:
    return Candidate(form=GraphOptions(precision=precision, attention=attention), kernels=kernels)


# ONNX Runtime's numbers: 1 is flash, 2 memory-efficient, 8 cuDNN; 0 lets the runtime choose.
CANDIDATES = (
    _candidate("fp16", "packed"),
    _candidate("fp16", "ranges"),
    _candidate("fp16", "heads"),
    _candidate("fp16", "packed", 1),
    _candidate("fp16", "packed", 2),
    _candidate("fp16", "ranges", 2),
    _candidate("fp16", "heads", 8),
    _candidate("fp16", "packed-qkv"),
    _candidate("fp16", "packed-fused"),
    _candidate("fp16", "fused"),
    _candidate("bf16", "heads"),
    _candidate("bf16", "heads", 8),
    _candidate("bf16", "ranges"),
    _candidate("fp32", "packed"),
    _candidate("fp32", "fused"),
)
REFERENCE = CANDIDATES[-1]
PLAIN = _candidate("fp32", "plain")
# These are checked but not timed: they are for other devices, or are slower.
_CHECKED_ONLY = (PLAIN, _candidate("fp32", "gathered"), _candidate("fp32", "heads"))
# If a family has no graph of a kind, the check says so.
_OTHER_FORMS = ("packed", "heads", "ranges", "gathered", "plain")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to measure. `items` are the texts of a request, or the rows of a batch.

    `way` distinguishes figures of a section that are otherwise the same.
    """

    name: str
    section: str
    model: str = SMALL
    length: int = 24
    items: int = 1
    way: str = ""
    candidate: Candidate | None = None
    aim: float | None = None
    """The target in sequences a second."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command. `seconds` is the length of each timed run."""

    output: Path
    work: Path
    provider: Provider = "cuda"
    tiny: bool = False
    seconds: float = 4.0
    workers: int = 0

    def shape(self, model: str) -> BertShape:
        """Return the size of a model; in a dry run, a tiny size."""
        return _TINY if self.tiny else PRESETS[model]

    def batch(self, figure: Figure) -> Shape:
        """Return the number of rows of a figure's batch, and the length of a row in tokens.

        A dry run has at most 8 rows of 16 tokens.
        """
        batch = Shape(figure.items, figure.length)
        return Shape(min(batch.rows, 8), min(batch.length, 16)) if self.tiny else batch

    def budget(self, section: str) -> float:
        """Return the time limit of a section in seconds; in a dry run, an hour."""
        return 3600.0 if self.tiny else SECTIONS[section].seconds

    @property
    def precision(self) -> Precision:
        """The precision of the served model; a CPU has only kernels for fp32."""
        return "fp32" if self.provider == "cpu" else "fp16"

    @property
    def gateway_workers(self) -> int:
        """The number of gateway processes."""
        return self.workers or max(1, int(usable_cores() * _GATEWAY_SHARE))


def through_gateway(model: str, items: int) -> str:
    """Return the name of the figure for requests with `items` texts each."""
    texts = "1 text" if items == 1 else f"{items} texts"
    return f"through the gateway, {model}, {BATCHES[model]} tokens, {texts} a request"


def in_session(model: str, way: str, rows: int = FULL_BATCH) -> str:
    """Return the name of a bare session's figure; `way` is a graph, or `fastest` and a variant."""
    return f"session, {model}, {rows}x{BATCHES[model]}, {way}"


def alone(library: str, model: str) -> str:
    """Return the name of a figure of a model in another library, without Sluicegate."""
    return f"{library} alone, {model}, fp16, {FULL_BATCH}x{BATCHES[model]}"


def checked(family: str, candidate: Candidate) -> str:
    """Return the name of the figure that says whether a kind of graph computes correctly."""
    return f"answers, {family}, {candidate.name}"


def _checks() -> Iterator[Figure]:
    """Yield the checks.

    BERT is checked in two sizes, because their attention heads differ in width.
    """
    forms = (*CANDIDATES, *_CHECKED_ONLY)
    other = [each for each in forms if each.form.attention in _OTHER_FORMS and not each.kernels]
    for model in (SMALL, LARGE):
        yield from (_check(model, each) for each in forms)
    for name in (OUT_OF_MEMORY, TWO_PROCESSES):
        yield Figure(name=name, section="check")
    for model in ("modernbert", "deberta-v2"):
        yield from (_check(model, each) for each in other)


def _check(model: str, candidate: Candidate) -> Figure:
    name = checked(model, candidate)
    return Figure(name=name, section="check", model=model, candidate=candidate)


def _sessions(model: str) -> Iterator[Figure]:
    """Yield figures of bare sessions: every graph, then the fastest graph with other batches."""

    def figure(way: str, rows: int = FULL_BATCH, candidate: Candidate | None = None) -> Figure:
        return Figure(
            name=in_session(model, way, rows),
            section="session",
            model=model,
            length=BATCHES[model],
            items=rows,
            way=way,
            candidate=candidate,
        )

    yield from (figure(each.name, candidate=each) for each in CANDIDATES)
    yield from (figure(f"fastest, {runs} in flight") for runs in _IN_FLIGHT)
    yield figure("fastest, mixed lengths")
    yield from (figure("fastest", rows) for rows in _OTHER_ROWS)
    yield from (figure("CUDA graph", rows) for rows in _OTHER_ROWS[:2])


def _figures() -> Iterator[Figure]:
    """Yield the figures, the most important ones first."""
    yield from _checks()
    for section, model, aim in (
        ("gateway-small", SMALL, 50_000),
        ("gateway-large", LARGE, 16_700),
    ):
        for items in (64, 1):
            yield Figure(
                name=through_gateway(model, items),
                section=section,
                model=model,
                length=BATCHES[model],
                items=items,
                aim=aim if items > 1 else None,
            )
    for model in BATCHES:
        yield from _sessions(model)
    yield Figure(name=MATRIX, section="pytorch")
    yield Figure(name=BANDWIDTH, section="pytorch")
    for library in ("PyTorch", "TensorRT"):
        for model, length in BATCHES.items():
            yield Figure(
                name=alone(library, model),
                section=library.lower(),
                model=model,
                length=length,
                items=FULL_BATCH,
            )
    for runs in (1, *_IN_FLIGHT):
        name = f"engine, {SMALL}, 24 tokens, {runs} in flight"
        yield Figure(name=name, section="engine", items=64, way=str(runs))
    for rows in (32, FULL_BATCH):
        yield Figure(
            name=f"transformers pipeline, {SMALL}, batches of {rows}",
            section="peer",
            items=rows,
        )


FIGURES = tuple(_figures())
