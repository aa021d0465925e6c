"""Lists the sections of a run on a GPU, the most important first, its models and its options."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from sluicegate.backends.executors.buckets import Shape
from sluicegate.backends.model_tools.graphs.options import Attention, GraphOptions, Precision
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.settings import Provider
from sluicegate.wire.cores import usable_cores

SECTIONS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "check": ("correctness", 90),
        "gateway-small": ("full_path", 130),
        "gateway-large": ("full_path", 150),
        "session": ("sessions", 150),
        "pytorch": ("torch_side", 50),
        "tensorrt": ("sessions", 90),
        "engine": ("full_path", 65),
        "peer": ("torch_side", 50),
    }
)
"""The module of each section, and its time in seconds, which includes the start of its process.

Only the section's process imports the module, because sections need different packages.
"""
LARGE, SMALL = "bert-base", "minilm-l6"
TOKENS: Mapping[str, int] = MappingProxyType({SMALL: 24, LARGE: 128})
"""The number of tokens in a row, by model."""
FULL_BATCH, BATCH_TOKENS = 256, 32_768
MATRIX = "matrix rate, operations/s"
IN_FLIGHT = (1, 2, 3)
PRESETS: Mapping[str, BertShape] = MappingProxyType(
    {
        SMALL: BertShape(layers=6, hidden=384, heads=12, intermediate=1536),
        LARGE: BertShape(layers=12, hidden=768, heads=12, intermediate=3072),
    }
)
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
CHECKED_ONLY = (PLAIN, _candidate("fp32", "gathered"), _candidate("fp32", "heads"))


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

    def batch(self, model: str, rows: int) -> Shape:
        """Return the shape of a batch of a model; a dry run has at most 8 rows of 16 tokens."""
        length = TOKENS[model]
        return Shape(min(rows, 8), min(length, 16)) if self.tiny else Shape(rows, length)

    def budget(self, section: str) -> float:
        """Return the time limit of a section in seconds; in a dry run, an hour."""
        return 3600.0 if self.tiny else SECTIONS[section][1]

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
    return f"through the gateway, {model}, {TOKENS[model]} tokens, {texts} a request"


def in_session(model: str, way: str, rows: int = FULL_BATCH) -> str:
    """Return the name of a bare session's figure; `way` is a graph, or `fastest` and a variant."""
    return f"session, {model}, {rows}x{TOKENS[model]}, {way}"


def alone(library: str, model: str) -> str:
    """Return the name of a figure of a model in another library, without Sluicegate."""
    return f"{library} alone, {model}, fp16, {FULL_BATCH}x{TOKENS[model]}"


def checked(family: str, candidate: Candidate) -> str:
    """Return the name of the figure that says whether a kind of graph computes correctly."""
    return f"answers, {family}, {candidate.name}"
