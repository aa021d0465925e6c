"""Declares the precisions of variants, and the options of commands that make a variant."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import click
import msgspec

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.qualification.gate import Bounds
from sluicegate.wire.gpus import GPU_PROVIDERS

VariantPrecision = Literal["int8", "fp16", "bf16"]
# The precisions to which a provider's runtime can round an fp32 graph.
ROUNDING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"openvino": ("bf16",), "tensorrt": ("fp16", "bf16")}
)
Echo = Callable[[str], None]
_Command = Callable[..., Any]
# The providers that gain from each precision, and why all other providers do not gain.
PROVIDERS: Mapping[VariantPrecision, tuple[str, ...]] = MappingProxyType(
    {"int8": ("cpu",), "fp16": GPU_PROVIDERS, "bf16": (*GPU_PROVIDERS, "openvino")}
)
ELSEWHERE: Mapping[VariantPrecision, str] = MappingProxyType(
    {
        "int8": "only ONNX Runtime on a CPU computes products in int8",
        "fp16": "a CPU computes most of the graph in fp32, and is slower",
        "bf16": "on a CPU, bf16 needs `SLUICEGATE_BACKEND_PROVIDER=openvino`",
    }
)
FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option(
        "--precision",
        type=click.Choice(get_args(VariantPrecision)),
        help="Precision of the variant.",
    ),
    click.option("--calibrate", type=FILE, help="File of texts to calibrate int8."),
    click.option(
        "--judge", type=FILE, help="File of other texts with labels, to judge the variant."
    ),
)
_BOUNDS = (
    click.option(
        "--max-flips",
        default=1.0,
        show_default=True,
        help="Share of results that may change, in %.",
    ),
    click.option(
        "--max-loss",
        default=0.3,
        show_default=True,
        help="Allowed loss of accuracy, in percentage points.",
    ),
    click.option(
        "--min-cosine",
        default=0.99,
        show_default=True,
        help="Smallest allowed cosine to the vectors of fp32.",
    ),
    click.option(
        "--min-speedup",
        default=1.0,
        show_default=True,
        help="Least speed, as a multiple of that of fp32.",
    ),
)


class GateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the bounds that a variant must keep."""

    bounds: Bounds
    min_speedup: float

    @classmethod
    def of(
        cls, *, max_flips: float, max_loss: float, min_cosine: float, min_speedup: float
    ) -> Self:
        """Return the bounds that the options give; the first two are in %."""
        bounds = Bounds(flips=max_flips / 100, accuracy_loss=max_loss / 100, cosine=min_cosine)
        return cls(bounds=bounds, min_speedup=min_speedup)


class VariantOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the options of a variant: its precision, its texts and its bounds."""

    precision: VariantPrecision
    calibrate: Path | None
    judge: Path | None
    """`None` is allowed only if the graph is already in the precision."""
    gate: GateOptions

    def golden_file(self) -> Path:
        """Return the file of texts by which the variant is judged.

        Raises:
            StartProblem: no file is given.
        """
        if self.judge is None:
            raise StartProblem("`--precision` needs `--judge`, a file of texts to judge by")
        return self.judge


def gate_options(command: _Command) -> _Command:
    """Add the options for bounds to a command, which passes their values to `GateOptions.of`."""
    return _with_options(command, _BOUNDS)


def variant_options(command: _Command) -> _Command:
    """Add the options for a variant to a command, which passes their values to `choose_variant`."""
    return _with_options(command, (*_OPTIONS, *_BOUNDS))


def _with_options(command: _Command, options: Sequence[Callable[[_Command], _Command]]) -> _Command:
    for option in reversed(options):
        command = option(command)
    return command


def choose_variant(
    *,
    precision: VariantPrecision | None,
    calibrate: Path | None,
    judge: Path | None,
    **limits: float,
) -> VariantOptions | None:
    """Return the variant that the options name; `None` without a precision.

    Raises:
        StartProblem: a file of texts is missing.
    """
    if precision is None:
        return None
    gate = GateOptions.of(**limits)
    wanted = VariantOptions(precision=precision, calibrate=calibrate, judge=judge, gate=gate)
    if precision != "fp16":
        wanted.golden_file()
    if precision == "int8" and calibrate is None:
        raise StartProblem("`--precision int8` needs `--calibrate`, a file of other texts")
    return wanted


@contextmanager
def needs_onnx(what: str) -> Iterator[None]:
    """Turn the error of a missing package into a one-line error; `what` needs the package.

    Serving a model does not need `onnx`, so the package may be missing.

    Raises:
        StartProblem: a package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise StartProblem(
            f"`{what}` needs the package `{error.name}`: install it with `pip install {error.name}`"
        ) from None
