"""Asks a reference library for its results, in a process with a deadline."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.comparing import reference
from sluicegate.backends.model_tools.comparing.results import Entity, Results
from sluicegate.backends.settings import foreign_environment
from sluicegate.backends.types import Text
from sluicegate.wire.protocol import Task

# The library for each task. The first of these tasks that a model has is used to compare it.
LIBRARIES = {
    Task.ENTITIES: "transformers",
    Task.EMBED: "sentence_transformers",
    Task.RERANK: "sentence_transformers",
    Task.CLASSIFY: "transformers",
}
_PACKAGES = {
    "transformers": "sentence-transformers",
    "sentence_transformers": "sentence-transformers",
}
REFERENCE_OPTION = click.option(
    "--reference",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="PYTHON",
    help="Python that has the reference library.  [default: this one]",
)


def reference_results(
    folder: Path,
    task: Task,
    texts: Sequence[Text],
    *,
    library: str | None = None,
    labels: Sequence[str] = (),
    python: Path | None = None,
    deadline: float | None = None,
) -> Results:
    """Return the results of a reference library for a checkpoint.

    `library` is by default the one for the task, and `python` the interpreter of this process.
    `labels` are the types of entities to find, for a model that finds any type. Without a
    `deadline`, the library may take as long as its texts need.

    Raises:
        StartProblem: the library is not installed, cannot use the folder, or takes longer than
            `deadline` seconds.
    """
    if not folder.is_dir():
        raise StartProblem(f"`--folder {folder}`: there is no such folder")
    library = library or LIBRARIES[task]
    given = {
        "folder": str(folder),
        "library": library,
        "task": task,
        "items": texts,
        "options": {"labels": labels} if labels else {},
    }
    answered = _ask(given, str(python or sys.executable), deadline, folder)
    if "missing" in answered:
        package = _PACKAGES.get(library, library)
        raise StartProblem(
            f"the reference library needs `{answered['missing']}`, which is not installed; "
            f"`pip install {package}` installs it, or `--reference PYTHON` names a Python that has "
            "it"
        )
    if "failed" in answered:
        raise StartProblem(f"`{folder}`: the reference library failed: {answered['failed']}")
    return _results(task, answered["results"])


def _ask(
    given: dict[str, Any], python: str, deadline: float | None, folder: Path
) -> dict[str, Any]:
    # The program's own folder is no place for imports: its modules have common names.
    environment = foreign_environment() | {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    try:
        process = subprocess.Popen(  # noqa: S603 - our own file, and an interpreter that the operator names
            [python, str(reference.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            encoding="utf-8",
            errors="replace",
            process_group=0,
        )
    except OSError as error:
        raise StartProblem(f"cannot run `{python}`: {error.strerror}") from None
    with process:
        try:
            output, complaints = process.communicate(json.dumps(given), deadline)
        except subprocess.TimeoutExpired:
            raise StartProblem(
                f"`{folder}`: the reference library took longer than {deadline:g} s"
            ) from None
        finally:
            # The interpreter may be a script that runs another one.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = (complaints.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        raise StartProblem(f"`{folder}`: the reference library ended early: {last}")
    try:
        answered = json.loads((output.splitlines() or [""])[-1])
    except ValueError:
        answered = None
    if not isinstance(answered, dict):
        raise StartProblem(
            f"`{python}` gave no results; `--reference` must name a Python interpreter"
        )
    return answered


def _results(task: Task, found: Any) -> Results:
    if task is Task.EMBED:
        return Results(vectors=np.array(found, dtype=np.float32))
    if task is Task.ENTITIES:
        return Results(entities=msgspec.convert(found, list[list[Entity]]))
    return Results(scores=found)
