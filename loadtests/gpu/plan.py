"""Defines the GPU sections, their time budgets, and the results that they leave."""

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from backends.executors.buckets import Shape
from backends.executors.provider import DeviceOptions
from backends.model_tools.graphs.form import GraphForm
from backends.model_tools.graphs.shapes import PRESETS, BertShape
from backends.settings import Provider

Section = Literal["check", "ceiling", "floor", "engine", "http", "peer"]
# Seconds a section may take; together with starting them less than nine minutes.
BUDGETS: MappingProxyType[Section, float] = MappingProxyType(
    {"check": 115, "ceiling": 120, "floor": 25, "engine": 70, "http": 130, "peer": 60}
)
MAIN, SMALL = "bert-base", "minilm-l6"
_TINY = BertShape(layers=2, hidden=32, heads=4, intermediate=64, vocab=2000, positions=64)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command. `seconds` is the length of each timed run."""

    output: Path
    work: Path
    provider: Provider = "cuda"
    device: int = 0
    served: str = MAIN
    """The size of the model that the engine and the whole path run."""
    tiny: bool = False
    seconds: float = 4.0
    rounds: int = 3
    workers: int = 8
    backends: int = 1
    clients: int = 4
    connections: int = 2048

    def shape(self, preset: str) -> BertShape:
        """Return the size of a model; a dry run takes tiny ones."""
        return _TINY if self.tiny else PRESETS[preset]

    @property
    def length(self) -> int:
        """How many tokens a sequence of the main figures has."""
        return 16 if self.tiny else 128

    @property
    def batch(self) -> Shape:
        """The batch in which candidates are compared."""
        return Shape(8, self.length) if self.tiny else Shape(256, self.length)

    @property
    def shapes(self) -> list[Shape]:
        """The batches in which the best candidate is timed."""
        if self.tiny:
            return [Shape(1, 16), Shape(8, 32)]
        small = [Shape(rows, 128) for rows in (1, 8, 32, 128, 512)]
        return [*small, Shape(1024, 32), Shape(64, 512)]


def pack(options: Options) -> bytes:
    """Return options for a section's process."""
    return msgspec.json.encode(options, enc_hook=str)


def unpack(text: bytes) -> Options:
    """Return the options that a section's process was given."""
    return msgspec.json.decode(text, type=Options, dec_hook=lambda _, value: Path(value))


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One way to run a model: a form of its graph and the attention kernels allowed."""

    form: GraphForm
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
            provider=options.provider,
            device=options.device,
            attention_kernels=self.kernels,
            graphs=self.graphs,
        )


def _candidate(name: str, kernels: int = 0) -> Candidate:
    precision, _, attention = name.partition("-")
    given = {"precision": precision, "attention": attention, "outputs": ["pooled"]}
    return Candidate(form=msgspec.convert(given, GraphForm), kernels=kernels)


# The numbers are ONNX Runtime's: 1 flash, 2 memory-efficient, 8 cuDNN; 0 leaves the choice to it.
CANDIDATES = (
    _candidate("fp32-fused"),
    _candidate("fp16-fused"),
    _candidate("fp16-heads"),
    _candidate("fp16-heads", 8),
    _candidate("fp16-ranges"),
    _candidate("fp16-ranges", 2),
    _candidate("fp16-packed"),
    _candidate("fp16-packed", 1),
    _candidate("fp16-packed", 2),
    _candidate("fp16-packed-qkv"),
    _candidate("fp16-packed-fused"),
    _candidate("bf16-heads"),
    _candidate("bf16-heads", 8),
    _candidate("bf16-ranges"),
)
REFERENCE = CANDIDATES[0]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. Rates are sequences and real tokens per second; latencies are seconds."""

    what: str
    rate: float | None = None
    tokens_per_second: float | None = None
    busy: float | None = None
    waste: float | None = None
    p50: float | None = None
    p99: float | None = None
    error: float | None = None
    passed: bool = True
    note: str = ""


class SectionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a section; `best` names the candidate for later sections."""

    section: Section
    status: Literal["done", "failed", "skipped", "out of time"]
    reason: str = ""
    took: float = 0.0
    lines: list[Measurement] = []
    best: str = ""


def write_result(options: Options, result: SectionResult) -> None:
    """Write a section's result, whole or not at all."""
    path = options.output / f"{result.section}.json"
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    temporary.replace(path)


def read_result(options: Options, section: Section) -> SectionResult | None:
    """Return what a section found, in this run or one before it."""
    try:
        return msgspec.json.decode(
            (options.output / f"{section}.json").read_bytes(), type=SectionResult
        )
    except (OSError, msgspec.DecodeError):
        return None


class Journal:
    """Stores the lines of a section one by one, so that a crash loses one figure.

    A line begun and never ended is left as failed, and the process that takes over goes on after
    it. A device that has failed fails everything that comes after it in the same process.
    """

    def __init__(self, options: Options, section: Section) -> None:
        self._options = options
        self._section: Section = section
        before = read_result(options, section)
        self.lines: list[Measurement] = before.lines if before is not None else []

    def has(self, what: str) -> bool:
        """Return whether this was begun, here or in a process before this one."""
        return any(line.what == what for line in self.lines)

    def begin(self, what: str) -> None:
        """Note what is about to run."""
        self._write([*self.lines, Measurement(what=what, passed=False, note="the process died")])

    def end(self, *lines: Measurement) -> None:
        """Note what it found, in the place of what was begun."""
        self.lines += lines
        self._write(self.lines)

    def _write(self, lines: list[Measurement]) -> None:
        reason = "it was not finished"
        found = SectionResult(
            section=self._section, status="out of time", reason=reason, lines=lines
        )
        write_result(self._options, found)


def best_candidate(options: Options) -> Candidate:
    """Return the fastest candidate whose answers were right, or a safe one."""
    found = read_result(options, "ceiling")
    best = fastest(found.lines) if found is not None else None
    return best or (REFERENCE if options.provider == "cpu" else _candidate("fp16-fused"))


def fastest(lines: Sequence[Measurement]) -> Candidate | None:
    """Return the candidate that a ceiling's lines say is fastest, also where it was cut short."""
    rates = {line.what: line.rate or 0.0 for line in lines if line.passed}
    timed = [each for each in CANDIDATES if rates.get(f"{MAIN} {each.name}")]
    return max(timed, key=lambda each: rates[f"{MAIN} {each.name}"], default=None)
