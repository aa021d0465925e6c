"""`models tune`: measures a model on this machine, or makes a faster variant of it."""

import sys
from collections.abc import Callable
from pathlib import Path

import click

from backends.admission.gate import Bounds
from backends.errors import StartProblem
from backends.repository.catalogue import read_catalogue
from backends.settings import BackendSettings, quiet_libraries, read_settings
from backends.tuning.texts import read_golden

Say = Callable[[str], None]
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("tune")
@click.argument("name", metavar="MODEL")
@click.option("--models", type=click.Path(path_type=Path), help="Model repository directory.")
@click.option("--threads", type=int, help="The most one-thread runs at a time (0: one per core).")
@click.option("--texts", type=_FILE, help="Texts to measure with, one a line or CSV.")
@click.option("--seconds", default=1.0, show_default=True, help="Time for each measurement.")
@click.option("--plot", type=_FILE, help="Where to draw the sweep.  [default: tune-MODEL.svg]")
@click.option("--precision", type=click.Choice(["int8"]), help="Make this variant instead.")
@click.option("--calibrate", type=_FILE, help="Texts that the variant's ranges are taken from.")
@click.option("--judge", type=_FILE, help="Other texts, with labels, that decide on the variant.")
@click.option("--max-flips", default=1.0, show_default=True, help="Per cent of labels.")
@click.option("--max-loss", default=0.3, show_default=True, help="Points of accuracy.")
@click.option("--min-speedup", default=1.0, show_default=True, help="Times as fast as fp32.")
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
def tune_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path | None,
    seconds: float,
    plot: Path | None,
    precision: str | None,
    calibrate: Path | None,
    judge: Path | None,
    max_flips: float,
    max_loss: float,
    min_speedup: float,
    dry_run: bool,
) -> None:
    """Find the best batches and threads for MODEL on this machine.

    With --precision, make a variant of the classifier MODEL: it becomes the newest revision if it
    stays within the bounds, and is refused with its numbers (exit code 1) if it does not.
    """
    settings = read_settings(models=models, threads=threads)
    if precision is None:
        golden = None if texts is None else read_golden(texts).texts
        file = plot or Path(f"tune-{name}.svg")
        tune_batches(settings, name, texts=golden, seconds=seconds, plot=file, dry_run=dry_run)
        return
    if calibrate is None or judge is None:
        raise StartProblem("`--precision` needs `--calibrate` and `--judge`, files of texts")
    accepted = tune_precision(
        settings,
        name,
        calibrate=calibrate,
        against=judge,
        bounds=Bounds(flips=max_flips / 100, accuracy_loss=max_loss / 100),
        least_speedup=min_speedup,
        dry_run=dry_run,
        say=click.echo,
    )
    if not accepted:
        sys.exit(1)


def tune_batches(
    settings: BackendSettings,
    name: str,
    *,
    texts: list[str] | None,
    seconds: float,
    plot: Path,
    dry_run: bool,
) -> None:
    """Sweep, print the table, draw the plot and keep the setting.

    Raises:
        StartProblem: the model cannot be measured, or the plot cannot be written.
    """
    quiet_libraries()
    from backends.tuning.speed import keep, tune_speed  # noqa: PLC0415
    from backends.tuning.sweep_report import describe_sweep, draw_sweep  # noqa: PLC0415

    sweep = tune_speed(settings, name, texts=texts, seconds=seconds)
    for line in describe_sweep(sweep):
        click.echo(line)
    try:
        plot.write_text(draw_sweep(sweep), encoding="utf-8")
    except OSError as error:
        raise StartProblem(f"cannot write `{plot}`: {error.strerror}") from None
    click.echo(f"plot: {plot}")
    if not dry_run and not keep(settings, sweep):
        click.echo("the setting was not kept: the model's folder cannot be written", err=True)


def tune_precision(
    settings: BackendSettings,
    name: str,
    *,
    calibrate: Path,
    against: Path,
    bounds: Bounds,
    least_speedup: float,
    dry_run: bool,
    say: Say,
) -> bool:
    """Make and judge an int8 variant; publish it when it is accepted, and say so.

    Raises:
        StartProblem: there is nothing to make it of.
    """
    quiet_libraries()
    try:
        # Only making a graph needs `onnx`; serving one does not.
        from backends.tuning.precision import Precision, describe  # noqa: PLC0415
        from backends.tuning.publish import publish  # noqa: PLC0415
        from backends.tuning.subject import find_subject  # noqa: PLC0415
    except ImportError as error:
        raise StartProblem(
            f"`--precision` needs the package `{error.name}`: install it with "
            f"`pip install {error.name}`"
        ) from None
    subject = find_subject(read_catalogue(settings.models), name, lanes=settings.lanes)
    texts, golden = read_golden(calibrate), read_golden(against)
    work = Precision(subject, bounds=bounds, least_speedup=least_speedup, say=say)
    graph, report = work.make(texts, golden)
    for line in describe(report):
        say(line)
    if report.reasons:
        say(f"Refused: {'; '.join(report.reasons)}")
        return False
    say("Accepted")
    if not dry_run:
        for folder in publish(settings.models, subject, graph, report):
            say(f"Wrote {folder}")
    return True
