"""Implements `models list` and `models check`."""

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
import msgspec

from sluicegate.backends.algorithms.registry import describe
from sluicegate.backends.app import open_backend
from sluicegate.backends.commands import MODELS_OPTION, MORE_MODELS_OPTION, say
from sluicegate.backends.executors.opening import executor_opener
from sluicegate.backends.model_tools.description import describe_model
from sluicegate.backends.open_inference.address import servers
from sluicegate.backends.repository.catalogue import Catalogue, read_catalogue
from sluicegate.backends.settings import BackendSettings, read_settings
from sluicegate.backends.telemetry.spans import NO_TRACING
from sluicegate.wire.plans import Serving
from sluicegate.wire.protocol import ModelInfo

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_Numbers = dict[str, list[str]]


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
    settings = read_settings(models=models, more_models=more_models, model_memory_bytes=0)
    infos, problems = asyncio.run(_load_all(settings))
    # A broken revision was replaced, so read the revisions that were loaded.
    loaded = {info.name: info.serving for info in infos if info.serving is not None}
    _print(_read(settings, loaded), infos, problems, as_json=as_json, shows_fields=True)
    if problems:
        sys.exit(1)


def _read(settings: BackendSettings, plans: Mapping[str, Serving] | None = None) -> Catalogue:
    own, more = settings.models, settings.more_models
    return read_catalogue(own, servers(settings), more=more, plans=plans)


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
    numbers = {
        name: _numbers(name, revisions.numbers, infos)
        for name, revisions in catalogue.revisions.items()
    }
    if as_json:
        document: dict[str, object] = {
            "models": msgspec.to_builtins(infos),
            "numbers": numbers,
            "problems": problems,
        }
        if inferred:
            document["inferred"] = {name: model.inferred for name, model in inferred.items()}
        click.echo(json.dumps(document, indent=2))
        return
    for info in infos:
        tasks = ", ".join(info.tasks) or "(only for other models)"
        uses = _describe(numbers[info.name]) if info.name in numbers else ""
        say(f"{info.name:24} {info.revision}  {info.profile:6} {tasks}{uses}")
        if model := inferred.get(info.name):
            for line in describe_model(info, model):
                say(f"    {line}")
    served = {info.name for info in infos}
    for name, reason in problems.items():
        found = numbers[name]["all"] if name in numbers and name not in served else []
        folders = f"  (revisions: {', '.join(found)})" if found else ""
        say(f"{name:24} broken: {reason}{folders}", err=True)


def _numbers(name: str, folders: Iterable[str], infos: Iterable[ModelInfo]) -> _Numbers:
    """Return the numbers of a model's revisions by use; `all` also has the unused ones."""
    known = {info.name: info for info in infos}
    serving = (known[name].serving if name in known else None) or Serving()
    ordered = sorted(folders, key=int)
    served = list(serving.revisions or ())
    named = [n for n in ordered if f"{name}@{n}" in known and n not in served]
    shadow = [n for n in named if serving.shadow is not None and n == serving.shadow.revision]
    preloaded = [n for n in named if n not in shadow]
    return {"served": served, "preloaded": preloaded, "shadow": shadow, "all": ordered}


def _describe(numbers: _Numbers) -> str:
    served, preloaded, shadow = numbers["served"], numbers["preloaded"], numbers["shadow"]
    uses = {
        "revision": " and ".join(served),
        "also": ", ".join(preloaded),
        "shadow": ", ".join(shadow),
        "not": ", ".join(n for n in numbers["all"] if n not in (*served, *preloaded, *shadow)),
    }
    return f"  ({'; '.join(f'{use} {those}' for use, those in uses.items() if those)})"
