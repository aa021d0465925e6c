"""Implements `models tune`: measures a model on this machine, or makes a faster variant."""

import sys
from pathlib import Path

import click

from backends.model_tools.tuning.variant_options import (
    VariantOptions,
    make_variant,
    variant_options,
)
from backends.qualification.golden_texts import read_golden
from backends.settings import BackendSettings, quiet_libraries, read_settings
from backends.types import Text

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("tune")
@click.argument("name", metavar="MODEL")
@click.option("--models", type=click.Path(path_type=Path), help="Model repository directory.")
@click.option("--threads", type=int, help="The most worker threads to try (0: one per core).")
@click.option("--texts", type=_FILE, help="File of texts to measure with: one per line, or CSV.")
@click.option("--seconds", default=1.0, show_default=True, help="Seconds of each measurement.")
@click.option("--plot", type=_FILE, help="File for the plot.  [default: tune-MODEL.svg]")
@variant_options
@click.option("--dry-run", is_flag=True, help="Write nothing to the repository.")
def tune_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path | None,
    seconds: float,
    plot: Path | None,
    dry_run: bool,
    wanted: VariantOptions | None,
) -> None:
    """Find the best batch size and number of threads for MODEL on this machine.

    With --precision, the command makes a variant of MODEL in another precision instead. If the
    variant stays within the bounds, it becomes the newest revision. Otherwise, its measurements are
    printed and the exit code is 1.
    """
    settings = read_settings(models=models, threads=threads)
    if wanted is None:
        golden = None if texts is None else read_golden(texts).texts
        file = plot or Path(f"tune-{name}.svg")
        tune_batches(settings, name, texts=golden, seconds=seconds, plot=file, dry_run=dry_run)
        return
    written = make_variant(settings, name, wanted, dry_run=dry_run, echo=click.echo)
    if written is None:
        sys.exit(1)
    for folder in written:
        click.echo(f"Wrote {folder}")


def tune_batches(
    settings: BackendSettings,
    name: str,
    *,
    texts: list[Text] | None,
    seconds: float,
    plot: Path,
    dry_run: bool,
) -> None:
    """Measure all settings, print the table, draw the plot and record the best setting.

    Raises:
        StartProblem: the model cannot be measured, or the plot cannot be written.
    """
    quiet_libraries()
    from backends.model_tools.tuning.speed import keep, tune_speed  # noqa: PLC0415
    from backends.model_tools.tuning.sweep_report import (  # noqa: PLC0415
        NO_PLOT,
        describe_sweep,
        draw_sweep,
    )

    sweep = tune_speed(settings, name, texts=texts, seconds=seconds)
    for line in describe_sweep(sweep):
        click.echo(line)
    click.echo(f"plot: {plot}" if draw_sweep(sweep, plot) else NO_PLOT)
    if not dry_run and not keep(settings, sweep):
        click.echo("cannot record the setting: the model's folder is read-only", err=True)
