"""Converts a folder, tries what came of it, and gives it its place in the repository."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from backends.app import open_backend
from backends.errors import StartProblem
from backends.executors.opening import executor_opener
from backends.importing.convert import convert
from backends.protocol import ModelInfo
from backends.repository.catalogue import read_catalogue
from backends.repository.description import describe_model
from backends.repository.manifest import NAME
from backends.settings import BackendSettings
from backends.telemetry.spans import NoTracing

_STAGING = ".importing"


def import_model(path: Path, root: Path, name: str, *, truncate: bool, dry_run: bool) -> list[str]:
    """Write the next revision of `name`, complete before it is seen; return the report.

    Raises:
        StartProblem: the folder holds no model that can be served; nothing is written then.
    """
    if not NAME.fullmatch(name):
        raise StartProblem(f"`{name}` is no name: lower-case letters, digits, `.`, `_`, `-`")
    try:
        with _staging(root) as staging:
            entry = staging / name / "1"
            origin = convert(path, entry)
            if truncate:
                text = yaml.safe_dump({"truncate": True})
                (entry / "model.yaml").write_text(text, encoding="utf-8")
            info = asyncio.run(_try(staging, name))
            model = read_catalogue(staging).models[name]
            lines = [f"made of                {origin}", *describe_model(info, model)]
            if dry_run:
                return lines
            return [*lines, f"written to             {_publish(entry, root / name)}"]
    except OSError as error:
        raise StartProblem(f"cannot write to `{root}`: {error}") from None


async def _try(staging: Path, name: str) -> ModelInfo:
    """Load the model and run it, as a backend would."""
    settings = BackendSettings(models=staging, threads=1)
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NoTracing(), open_executor=opener) as repository:
        problems = repository.served.problems
        if name in problems:
            raise StartProblem(f"`{name}` cannot be served: {problems[name]}")
        (info,) = repository.engine.state().models
        return info


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Yield a hidden repository on the same disk, so that a rename is all that publishing is."""
    staging = root / _STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _publish(entry: Path, model: Path) -> Path:
    model.mkdir(exist_ok=True)
    newest = max((int(p.name) for p in model.iterdir() if p.name.isdecimal()), default=0)
    return entry.rename(model / str(newest + 1))
