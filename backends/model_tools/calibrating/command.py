"""Implements `models calibrate`: finds when a cascade asks its large model."""

import csv
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

from sluicegate.backends.commands import MODELS_OPTION, say
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.calibrating.bands import Point, exact_interval
from sluicegate.backends.model_tools.calibrating.measuring import Calibration, Goal, calibrate
from sluicegate.backends.qualification.golden_texts import read_golden
from sluicegate.backends.settings import quiet_libraries, read_settings

_FILE = click.Path(path_type=Path, dir_okay=False)
_RATE = click.FloatRange(0.0001, 1, max_open=True)
_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_ROWS = 10
_EXAMPLE = "sluicegate models calibrate sentiment-cascade --models ./models --texts texts.csv"


@click.command("calibrate", epilog=f"\b\nExample:\n  {_EXAMPLE}")
@click.argument("name", metavar="MODEL")
@MODELS_OPTION
@click.option("--threads", type=int, help="Worker threads (0: one per core).")
@click.option("--texts", type=_FILE, required=True, help="File of texts: one per line, or CSV.")
@click.option(
    "--disagreement",
    type=_RATE,
    default=0.01,
    show_default=True,
    help="Share of texts on which the cascade may differ from its large model.",
)
@click.option(
    "--missed",
    type=_RATE,
    help="Share of the large model's findings of --label that may be missed.",
)
@click.option("--label", help="Compare whether this label reaches --score, as a guard does.")
@click.option(
    "--score", type=_SHARE, default=0.5, show_default=True, help="The guard's score of --label."
)
@click.option("--curve", type=_FILE, help="CSV file for the curve of cost and disagreement.")
def calibrate_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    texts: Path,
    disagreement: float,
    missed: float | None,
    label: str | None,
    score: float,
    curve: Path | None,
) -> None:
    """Find when MODEL, a cascade, must ask its large model.

    Half of the texts order the thresholds, and the other half tests them. With a certainty of
    97.5 %, the cascade then differs from its large model on at most the given share of texts like
    these. Use texts that no model was trained on. They need no labels.
    """
    if missed is not None and label is None:
        raise StartProblem("`--missed` bounds the findings of a label; give `--label` too")
    settings = read_settings(models=models, threads=threads)
    quiet_libraries()
    goal = Goal(disagreement=disagreement, missed=missed, label=label, score=score)
    found = calibrate(settings, name, read_golden(texts), goal)
    if curve is not None:
        _write_curve(curve, found)
    for line in _describe(found):
        say(line)


def _describe(found: Calibration) -> Iterator[str]:
    # The bands do not differ by equal shares. The last one asks for no text.
    nearest = (next(p for p in found.curve if p.asked <= at / _ROWS) for at in range(_ROWS, -1, -1))
    yield " asked  disagreement"
    for point in dict.fromkeys(nearest):
        yield f"{point.asked:6.1%}  {point.disagreement:12.2%}"
    chosen, (least, most) = found.chosen, found.chosen.interval
    yield ""
    yield f"the large model is asked for  {chosen.asked:.1%} of texts"
    yield f"disagreement                  {chosen.disagreement:.2%} ({least:.2%} to {most:.2%})"
    if found.goal.label is not None:
        least, most = exact_interval(chosen.missed, chosen.reached)
        yield (
            f"it misses                     {chosen.missed} of {chosen.reached} findings of the "
            f"large model ({least:.2%} to {most:.2%})"
        )
    rates = [1 / found.cascade_seconds, 1 / found.large_seconds, 1 / found.small_seconds]
    yield "texts a second                {:,.0f}; large {:,.0f}, small {:,.0f}".format(*rates)
    if found.accuracies is not None:
        small, large, cascade = found.accuracies
        yield f"accuracy                      {cascade:.2%}; large {large:.2%}, small {small:.2%}"
    yield ""
    yield "For the model.yaml of the cascade:"
    options = {"options": found.goal.options(chosen.band)}
    yield from yaml.safe_dump(options, default_flow_style=None).splitlines()


def _write_curve(path: Path, found: Calibration) -> None:
    def line(point: Point) -> list[float]:
        seconds = found.small_seconds + point.asked * found.large_seconds
        return [*point.band, point.asked, point.disagreement, seconds]

    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["low", "high", "asked", "disagreement", "seconds"])
            writer.writerows(map(line, found.curve))
    except OSError as error:
        raise StartProblem(f"cannot write `{path}`: {error.strerror}") from None
