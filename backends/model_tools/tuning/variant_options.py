"""Declares the options of commands that make a variant in another precision."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from backends.errors import StartProblem
from backends.model_tools.tuning.precision import ELSEWHERE, PROVIDERS, Echo, VariantPrecision
from backends.qualification.gate import Bounds
from backends.qualification.golden_texts import read_golden
from backends.repository.catalogue import read_catalogue
from backends.settings import BackendSettings, quiet_libraries

_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option(
        "--precision",
        type=click.Choice(get_args(VariantPrecision)),
        help="Precision of the variant.",
    ),
    click.option("--calibrate", type=_FILE, help="File of texts to calibrate int8."),
    click.option(
        "--judge", type=_FILE, help="File of other texts with labels, to judge the variant."
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


def gate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for bounds to a command.

    The command gets their values as the argument `gate`.
    """

    @functools.wraps(command)
    def with_gate(
        *, max_flips: float, max_loss: float, min_cosine: float, min_speedup: float, **others: Any
    ) -> Any:
        bounds = Bounds(flips=max_flips / 100, accuracy_loss=max_loss / 100, cosine=min_cosine)
        return command(gate=GateOptions(bounds=bounds, min_speedup=min_speedup), **others)

    return _with_options(with_gate, _BOUNDS)


def variant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a variant to a command.

    The command gets their values as the argument `wanted`.
    """

    @functools.wraps(command)
    def with_wanted(
        *,
        precision: VariantPrecision | None,
        calibrate: Path | None,
        judge: Path | None,
        gate: GateOptions,
        **others: Any,
    ) -> Any:
        if precision is None:
            return command(wanted=None, **others)
        wanted = VariantOptions(precision=precision, calibrate=calibrate, judge=judge, gate=gate)
        if precision != "fp16":
            wanted.golden_file()
        if precision == "int8" and calibrate is None:
            raise StartProblem("`--precision int8` needs `--calibrate`, a file of other texts")
        return command(wanted=wanted, **others)

    return _with_options(gate_options(with_wanted), _OPTIONS)


def _with_options(
    command: Callable[..., Any], options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


def make_variant(
    settings: BackendSettings, name: str, wanted: VariantOptions, *, dry_run: bool, echo: Echo
) -> list[Path] | None:
    """Make and judge a variant; return the written folders, or `None` if it is refused.

    Raises:
        StartProblem: the variant cannot be made.
    """
    judge = wanted.golden_file()
    quiet_libraries()
    with needs_onnx("--precision"):
        from backends.model_tools.tuning.publish import publish  # noqa: PLC0415
        from backends.model_tools.tuning.tuned_model import find_tuned_model  # noqa: PLC0415
        from backends.model_tools.tuning.variant_gate import (  # noqa: PLC0415
            VariantGate,
            describe_report,
        )
        from backends.model_tools.tuning.variant_maker import VariantMaker  # noqa: PLC0415
    if wanted.precision == "bf16" and settings.provider not in PROVIDERS["bf16"]:
        raise StartProblem(f"`--precision bf16`: {ELSEWHERE['bf16']}")
    subject = find_tuned_model(read_catalogue(settings.models), name, settings)
    golden = subject.suited(read_golden(judge), judge)
    maker = VariantMaker(subject, bounds=wanted.gate.bounds, echo=echo)
    limits = wanted.gate
    gate = VariantGate(subject, golden, bounds=limits.bounds, min_speedup=limits.min_speedup)
    calibrate = None
    if wanted.calibrate is not None:
        calibrate = subject.suited(read_golden(wanted.calibrate), wanted.calibrate)
    graph, report = maker.make(wanted.precision, gate, calibrate=calibrate)
    for line in describe_report(report):
        echo(line)
    if report.reasons:
        echo(f"Refused: {'; '.join(report.reasons)}")
        return None
    echo("Accepted")
    return [] if dry_run else publish(settings.models, subject, graph, report)


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
