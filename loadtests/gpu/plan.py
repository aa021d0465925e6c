"""Lists what is measured on a GPU, in the order of importance, and the options of a run."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from backends.cores import usable_cores
from backends.executors.buckets import Shape
from backends.executors.provider import DeviceOptions
from backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from backends.model_tools.graphs.shapes import PRESETS, BertShape
from backends.settings import Provider

Section = Literal[
    "check", "gateway-small", "gateway-large", "session", "pytorch", "tensorrt", "engine", "peer"
]
SECTIONS: tuple[Section, ...] = get_args(Section)
# Seconds a section may take, the start of its process with it; together less than 13 minutes.
BUDGETS: MappingProxyType[Section, float] = MappingProxyType(
    {
        "check": 90,
        "gateway-small": 130,
        "gateway-large": 150,
        "session": 150,
        "pytorch": 50,
        "tensorrt": 90,
        "engine": 50,
        "peer": 50,
    }
)
LARGE, SMALL = "bert-base", "minilm-l6"
FULL_BATCH, BATCH_TOKENS = 256, 32_768
ROUNDS = 3
"""Runs at least; the median counts."""
CLIENTS, IN_FLIGHT_TEXTS = 4, 4096
"""Load processes, and the texts asked for at a time."""
_TINY = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=2000, positions=64)
# The gateway's share of an item's processor time: three of eight cores.
_GATEWAY_SHARE = 3 / 8


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to measure. `items` are the texts of a request, or the rows of a batch.

    `way` is what tells apart the figures of a section that have all else in common.
    """

    name: str
    section: Section
    preset: str = SMALL
    length: int = 24
    items: int = 1
    way: str = ""
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
    known: tuple[str, ...] = ()
    """The figures that earlier records have. They are measured last."""

    def shape(self, preset: str) -> BertShape:
        """Return the size of a model; a dry run takes tiny ones."""
        return _TINY if self.tiny else PRESETS[preset]

    def batch(self, figure: Figure) -> Shape:
        """Return the rows and the length of a figure's batch; a dry run takes small ones."""
        batch = Shape(figure.items, figure.length)
        return Shape(min(batch.rows, 8), min(batch.length, 16)) if self.tiny else batch

    def precision(self) -> Precision:
        """Return the precision of what is served; a CPU has kernels for fp32 only."""
        return "fp32" if self.provider == "cpu" else "fp16"

    def gateway_workers(self) -> int:
        """Return how many gateway processes run."""
        return self.workers or max(1, int(usable_cores() * _GATEWAY_SHARE))


def pack(options: Options) -> bytes:
    """Return options for a section's process."""
    return msgspec.json.encode(options, enc_hook=str)


def unpack(text: bytes) -> Options:
    """Return the options that a section's process was given."""
    return msgspec.json.decode(text, type=Options, dec_hook=lambda _, value: Path(value))


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a model: a form of its graph and the attention kernels allowed."""

    form: GraphOptions
    kernels: int = 0
    graphs: bool = False

    @property
    def name(self) -> str:
        """What it is called in tables and files."""
        kernels = f"-k{self.kernels}" if self.kernels else ""
        graphs = "-graphs" if self.graphs else ""
        return f"{self.form.precision}-{self.form.attention}{kernels}{graphs}"

    def device_options(self, options: Options) -> DeviceOptions:
        """Return what a session is opened with."""
        return DeviceOptions(
            provider=options.provider, attention_kernels=self.kernels, graphs=self.graphs
        )


def _candidate(precision: Precision, attention: Attention, kernels: int = 0) -> Candidate:
    form = GraphOptions(precision=precision, attention=attention, outputs=("pooled",))
    return Candidate(form=form, kernels=kernels)


# The numbers are ONNX Runtime's: 1 flash, 2 memory-efficient, 8 cuDNN; 0 leaves the choice to it.
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
# These are checked and not timed: they are for other devices, or slower.
_CHECKED_ONLY = (
    _candidate("fp32", "gathered"),
    _candidate("fp32", "plain"),
    _candidate("fp32", "heads"),
    _candidate("fp32", "ranges"),
)
# The forms of families other than BERT; a family that lacks one says so.
_OTHER_FORMS = (
    _candidate("fp16", "packed"),
    _candidate("fp16", "heads"),
    _candidate("fp16", "ranges"),
    _candidate("bf16", "heads"),
    _candidate("fp32", "packed"),
    _candidate("fp32", "heads"),
    _candidate("fp32", "gathered"),
    _candidate("fp32", "plain"),
)
CHECKED: MappingProxyType[str, tuple[Candidate, ...]] = MappingProxyType(
    {
        SMALL: (*CANDIDATES, *_CHECKED_ONLY),
        LARGE: (*CANDIDATES, *_CHECKED_ONLY),
        "modernbert": _OTHER_FORMS,
        "deberta-v2": _OTHER_FORMS,
    }
)
"""What is checked of each family. The two sizes of BERT differ in the width of a head."""
OUT_OF_MEMORY, TWO_PROCESSES = "out of memory", "two processes on one device"
IN_FLIGHT = (2, 3)
_BATCHES = ((SMALL, 24), (LARGE, 128))
_OTHER_ROWS = (1, 8, 64, 1024)


def checked(family: str, candidate: Candidate) -> str:
    """Return the name of the figure that says whether a form answers rightly."""
    return f"answers, {family}, {candidate.name}"


def _figures() -> Iterator[Figure]:
    """Yield the figures, the most important ones first."""
    yield from _answers()
    yield _through_gateway("gateway-small", SMALL, 24, items=64, aim=50_000)
    yield _through_gateway("gateway-small", SMALL, 24, items=1)
    yield _through_gateway("gateway-large", LARGE, 128, items=64, aim=16_700)
    yield _through_gateway("gateway-large", LARGE, 128, items=1)
    for preset, length in _BATCHES:
        yield from _bare(preset, length)
    yield Figure(name="matrix rate, operations/s", section="pytorch", way="matrix")
    yield Figure(name="bandwidth, bytes/s read and written", section="pytorch", way="bandwidth")
    yield from _alone("pytorch", "PyTorch")
    yield from _alone("tensorrt", "TensorRT")
    for runs in (1, *IN_FLIGHT):
        name = f"engine, {SMALL}, 24 tokens, {runs} in flight"
        yield Figure(name=name, section="engine", way=str(runs))
    for rows in (32, FULL_BATCH):
        name = f"transformers pipeline, {SMALL}, batches of {rows}"
        yield Figure(name=name, section="peer", items=rows)


def _answers() -> Iterator[Figure]:
    for family, candidates in CHECKED.items():
        for each in candidates:
            name = checked(family, each)
            yield Figure(name=name, section="check", preset=family, way=each.name)
        if family == SMALL:  # before the families that are not served below
            for name in (OUT_OF_MEMORY, TWO_PROCESSES):
                yield Figure(name=name, section="check", way=name)


def _alone(section: Section, title: str) -> Iterator[Figure]:
    for preset, length in _BATCHES:
        yield Figure(
            name=f"{title} alone, {preset}, fp16, {FULL_BATCH}x{length}",
            section=section,
            preset=preset,
            length=length,
            items=FULL_BATCH,
        )


def _through_gateway(
    section: Section, preset: str, length: int, *, items: int, aim: float | None = None
) -> Figure:
    texts = "1 text" if items == 1 else f"{items} texts"
    name = f"through the gateway, {preset}, {length} tokens, {texts} a request"
    return Figure(name=name, section=section, preset=preset, length=length, items=items, aim=aim)


def _bare(preset: str, length: int) -> Iterator[Figure]:
    """Yield the figures of bare sessions: every form in full batches, then the fastest in others.

    `way` is a form, or what is done with the fastest.
    """

    def figure(rows: int, way: str) -> Figure:
        name = f"session, {preset}, {rows}x{length}, {way}"
        return Figure(
            name=name, section="session", preset=preset, length=length, items=rows, way=way
        )

    yield from (figure(FULL_BATCH, each.name) for each in CANDIDATES)
    yield from (figure(FULL_BATCH, f"fastest, {runs} in flight") for runs in IN_FLIGHT)
    yield figure(FULL_BATCH, "fastest, mixed lengths")
    yield from (figure(rows, "fastest") for rows in _OTHER_ROWS)
    yield from (figure(rows, "CUDA graph") for rows in _OTHER_ROWS[:2])


FIGURES = tuple(_figures())


def sections_in_order(known: Collection[str]) -> list[Section]:
    """Return the sections: answers first, then those with figures that are not known yet."""
    missing = [figure.section for figure in FIGURES if figure.name not in known]
    return list(dict.fromkeys(["check", *missing, *(figure.section for figure in FIGURES)]))


def figures_of(section: Section, known: Collection[str]) -> Sequence[Figure]:
    """Return the figures of a section, those that are not known yet first."""
    own = [figure for figure in FIGURES if figure.section == section]
    return sorted(own, key=lambda figure: figure.name in known)
