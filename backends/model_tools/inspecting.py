"""Implements `models list` and `models check`."""

import asyncio
import json
import sys
from pathlib import Path

import click
import msgspec

from backends.algorithms.registry import describe
from backends.app import open_backend
from backends.commands import MODELS_OPTION, MORE_MODELS_OPTION
from backends.executors.opening import executor_opener
from backends.model_tools.description import describe_model
from backends.open_inference.address import servers
from backends.repository.catalogue import Catalogue, Revisions, read_catalogue
from backends.settings import BackendSettings, read_settings
from backends.telemetry.spans import NO_TRACING
from wire.protocol import ModelInfo

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.command("list", epilog="\b\nExample:\n  sluicegate models list --models ./models")
@MODELS_OPTION
@MORE_MODELS_OPTION
@_JSON
def list_command(models: Path | None, more_models: Path | None, *, as_json: bool) -> None:
    """List the models that a backend would serve, and the broken models."""
    catalogue = _read(read_settings(models=models, more_models=more_models))
    infos, problems = describe(catalogue)
    _print(catalogue, infos, problems, as_json=as_json)


@click.command("check", epilog="\b\nExample:\n  sluicegate models check --models ./models")
@MODELS_OPTION
@MORE_MODELS_OPTION
@_JSON
def check_command(models: Path | None, more_models: Path | None, *, as_json: bool) -> None:
    """Load every model and run it once; exit with status 1 if a model is broken.

    Properties that `model.yaml` does not state are inferred from other files. The command shows
    these properties and files.
    """
    settings = read_settings(models=models, more_models=more_models)
    infos, problems = asyncio.run(_load_all(settings))
    _print(_read(settings), infos, problems, as_json=as_json, shows_fields=True)
    if problems:
        sys.exit(1)


def _read(settings: BackendSettings) -> Catalogue:
    return read_catalogue(settings.models, servers(settings), more=settings.more_models)


async def _load_all(settings: BackendSettings) -> tuple[list[ModelInfo], dict[str, str]]:
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
        return repository.core.state().models, dict(repository.core.model_set.problems)


def _print(
    catalogue: Catalogue,
    infos: list[ModelInfo],
    problems: dict[str, str],
    *,
    as_json: bool,
    shows_fields: bool = False,
) -> None:
    models = catalogue.models if shows_fields else {}
    inferred = {name: model for name, model in models.items() if model.inferred}
    if as_json:
        document: dict[str, object] = {
            "models": msgspec.to_builtins(infos),
            "numbers": {
                name: {"served": list(each.shares), "all": sorted(each.numbers, key=int)}
                for name, each in catalogue.revisions.items()
            },
            "problems": problems,
        }
        if inferred:
            document["inferred"] = {name: model.inferred for name, model in inferred.items()}
        click.echo(json.dumps(document, indent=2))
        return
    for info in infos:
        tasks = ", ".join(info.tasks) or "(only for other models)"
        numbers = _numbers(catalogue.revisions.get(info.name))
        click.echo(f"{info.name:24} {info.revision}  {info.profile:6} {tasks}{numbers}")
        if model := inferred.get(info.name):
            for line in describe_model(info, model):
                click.echo(f"    {line}")
    for name, reason in problems.items():
        click.echo(f"{name:24} broken: {reason}", err=True)


def _numbers(revisions: Revisions | None) -> str:
    """Return the numbers of the served revisions and of the other ones in the model's folder."""
    if revisions is None:
        return ""  # the name of one revision, such as `tiny@2`
    others = sorted(set(revisions.numbers) - set(revisions.shares), key=int)
    rest = f", not {', '.join(others)}" if others else ""
    return f"  (revision {' and '.join(revisions.shares)}{rest})"
