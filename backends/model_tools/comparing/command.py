"""Implements `models compare`: compares a model with the reference libraries."""

import sys
from pathlib import Path

import click

from sluicegate.backends.algorithms.registry import describe
from sluicegate.backends.commands import MODELS_OPTION, say
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.comparing.answers import served_results
from sluicegate.backends.model_tools.comparing.asking import (
    LIBRARIES,
    REFERENCE_OPTION,
    reference_results,
)
from sluicegate.backends.model_tools.comparing.results import compare_results, describe_difference
from sluicegate.backends.qualification.gate import Measure
from sluicegate.backends.qualification.golden_texts import read_golden
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.backends.settings import BackendSettings, quiet_libraries, read_settings
from sluicegate.wire.protocol import Task

_FILE = click.Path(path_type=Path, dir_okay=False)
_MEASURES: dict[Task, Measure] = {Task.ENTITIES: "tokens", Task.EMBED: "vectors"}
_EXAMPLE = (
    "sluicegate models compare sentiment --models ./models --folder ./checkpoint --texts texts.csv"
)


@click.command("compare", epilog=f"\b\nExample:\n  {_EXAMPLE}")
@click.argument("name", metavar="MODEL")
@MODELS_OPTION
@click.option("--threads", type=int, help="Worker threads (0: one per core).")
@click.option(
    "--folder", type=click.Path(path_type=Path), required=True, help="The model's checkpoint."
)
@click.option("--texts", type=_FILE, required=True, help="File of texts: one per line, or CSV.")
@REFERENCE_OPTION
@click.option(
    "--tolerance", default=1e-3, show_default=True, help="Allowed difference of scores and vectors."
)
def compare_command(
    *,
    name: str,
    models: Path | None,
    threads: int | None,
    folder: Path,
    texts: Path,
    reference: Path | None,
    tolerance: float,
) -> None:
    """Compare MODEL's results with the results of transformers on its checkpoint.

    Exits with 1 if labels or entities differ, or if scores or vectors differ by more than the
    tolerance. Needs sentence-transformers, which installs transformers and torch, in this
    environment or in the one of --reference.
    """
    settings = read_settings(models=models, threads=threads)
    quiet_libraries()
    task = _find_task(settings, name)
    measure: Measure = _MEASURES.get(task, "labels")
    golden = read_golden(texts).suited_to(measure, reads_pairs=task is Task.RERANK)
    expected = reference_results(folder, task, golden.texts, python=reference)
    served = served_results(settings, name, golden.texts, task)
    try:
        found = compare_results(served, expected, tolerance=tolerance)
    except ValueError as error:
        raise StartProblem(f"`{name}` cannot be compared with `{folder}`: {error}") from None
    say(f"task                   {task}")
    for line in describe_difference(found):
        say(line)
    if not found.is_within(tolerance):
        sys.exit(1)


def _find_task(settings: BackendSettings, name: str) -> Task:
    """Return the task with which a model is compared.

    Raises:
        StartProblem: the model does not exist, or has no task that the reference libraries have.
    """
    infos, problems = describe(read_catalogue(settings.models))
    info = next((info for info in infos if info.name == name), None)
    if info is None:
        reason = problems.get(name, "it is not in the repository")
        raise StartProblem(f"`{name}` cannot be compared: {reason}")
    task = next((task for task in LIBRARIES if task in info.tasks), None)
    if task is None:
        raise StartProblem(f"`{name}` has no task that can be compared: {', '.join(LIBRARIES)}")
    return task
