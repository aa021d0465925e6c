"""Declares the options of commands that make a variant in another precision."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from backends.errors import StartProblem
from backends.model_tools.tuning.profile import Echo, Profile
from backends.model_tools.tuning.texts import read_golden
from backends.qualification.gate import Bounds
from backends.repository.catalogue import read_catalogue
from backends.settings import BackendSettings, quiet_libraries

_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--precision", type=click.Choice(get_args(Profile)), help="Make this variant."),
    click.option("--calibrate", type=_FILE, help="Texts that int8's ranges are taken from."),
    click.option("--judge", type=_FILE, help="Other texts, with labels, that decide on it."),
    click.option("--max-flips", default=1.0, show_default=True, help="Per cent of labels."),
    click.option("--max-loss", default=0.3, show_default=True, help="Points of accuracy."),
    click.option("--min-speedup", default=1.0, show_default=True, help="Times as fast as fp32."),
)


class VariantOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a variant's options: its texts, and the bounds it must keep."""

    precision: Profile
    calibrate: Path | None
    judge: Path
    bounds: Bounds
    min_speedup: float


def variant_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a variant, which it takes as one: `wanted`."""

    @functools.wraps(command)
    def with_wanted(
        *,
        precision: Profile | None,
        calibrate: Path | None,
        judge: Path | None,
        max_flips: float,
        max_loss: float,
        min_speedup: float,
        **others: Any,
    ) -> Any:
        if precision is None:
            return command(wanted=None, **others)
        if judge is None:
            raise StartProblem("`--precision` needs `--judge`, a file of texts that decide on it")
        if precision == "int8" and calibrate is None:
            raise StartProblem("`--precision int8` needs `--calibrate`, a file of other texts")
        wanted = VariantOptions(
            precision=precision,
            calibrate=calibrate,
            judge=judge,
            bounds=Bounds(flips=max_flips / 100, accuracy_loss=max_loss / 100),
            min_speedup=min_speedup,
        )
        return command(wanted=wanted, **others)

    decorated: Callable[..., Any] = with_wanted
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def make_variant(
    settings: BackendSettings, name: str, wanted: VariantOptions, *, dry_run: bool, echo: Echo
) -> list[Path] | None:
    """Make and judge a variant; return what was written of it, `None` where it is refused.

    Raises:
        StartProblem: there is nothing to make it of.
    """
    quiet_libraries()
    try:
        # Only making a graph needs `onnx`; serving one does not.
        from backends.model_tools.tuning.precision import Precision, describe  # noqa: PLC0415
        from backends.model_tools.tuning.publish import publish  # noqa: PLC0415
        from backends.model_tools.tuning.tuned_model import find_tuned_model  # noqa: PLC0415
    except ImportError as error:
        raise StartProblem(
            f"`--precision` needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from None
    subject = find_tuned_model(read_catalogue(settings.models), name, settings)
    golden = read_golden(wanted.judge)
    work = Precision(subject, bounds=wanted.bounds, least_speedup=wanted.min_speedup, echo=echo)
    if wanted.calibrate is None or wanted.precision == "fp16":
        graph, report = work.halve(golden)
    else:
        graph, report = work.make(read_golden(wanted.calibrate), golden)
    for line in describe(report):
        echo(line)
    if report.reasons:
        echo(f"Refused: {'; '.join(report.reasons)}")
        return None
    echo("Accepted")
    return [] if dry_run else publish(settings.models, subject, graph, report)
