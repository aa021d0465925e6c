"""Defines the commands of a backend: serve models, and inspect a model repository."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import click
import msgspec
from typing_extensions import override

from backends.algorithms.registry import describe
from backends.app import open_backend, serve
from backends.errors import StartProblem
from backends.executors.opening import executor_opener
from backends.model_tools.comparing.command import compare_command
from backends.model_tools.importing.command import import_command
from backends.model_tools.syncing.command import push_command, sync_command
from backends.model_tools.tuning.command import tune_command
from backends.model_tools.tuning.optimize_command import optimize_command
from backends.open_inference.address import servers
from backends.repository.catalogue import Catalogue, read_catalogue
from backends.repository.description import describe_model
from backends.repository.model import Model
from backends.settings import (
    BackendSettings,
    Provider,
    process_environment,
    read_settings,
    unknown_variables,
)
from backends.telemetry.logs import configure_logging
from backends.telemetry.spans import NO_TRACING
from wire.gpus import GPU_PROVIDERS, find_gpus
from wire.installing import conflict_of_runtimes
from wire.protocol import ModelInfo

_log = logging.getLogger(__name__)
_CANNOT_START = 2
# By default, CUDA numbers the fastest card first.
_ORDER = "PCI_BUS_ID"
_MODELS = click.option(
    "--models", type=click.Path(path_type=Path), help="Model repository directory."
)
_MORE_MODELS = click.option(
    "--more-models",
    type=click.Path(path_type=Path),
    help="A second repository. The first one takes precedence for models with the same name.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_EXAMPLES = {
    "check": "models check --models ./models",
    "compare": "models compare sentiment --models ./models --folder ./checkpoint --texts texts.csv",
    "import": "models import ./checkpoint --models ./models --name sentiment",
    "list": "models list --models ./models",
    "optimize": "models optimize sentiment --models ./models --texts texts.csv",
    "push": "models push ./models s3://bucket/models",
    "sync": "models sync s3://bucket/models ./models --watch 30",
    "tune": "models tune sentiment --models ./models --texts texts.csv",
}
"""An example for the `--help` of each `models` command."""


class _OneLineGroup(click.Group):
    """Prints the `StartProblem` of a command as one line."""

    @override
    def invoke(self, ctx: click.Context) -> object:
        with _one_line("models"):
            return super().invoke(ctx)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Serve the models of a repository, and manage model repositories."""


@main.command(
    "serve", epilog="\b\nExample:\n  sluicegate backend --models ./models --region eu --port 9000"
)
@_MODELS
@_MORE_MODELS
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option("--region", help="Region of this backend.")
@click.option("--id", "backend_id", help="Name of this backend, unique in its region.")
@click.option("--threads", type=int, help="Number of worker threads (0: one per core).")
@click.option(
    "--provider", type=click.Choice(get_args(Provider)), help="Runtime that runs the models."
)
@click.option("--drain", type=float, help="Seconds that calls in flight have to end after SIGTERM.")
@click.option(
    "--exit-with-parent", is_flag=True, default=None, help="Stop when the parent process ends."
)
def serve_command(**options: object) -> None:
    """Serve the models until SIGTERM.

    Every option can also be set in the environment, as SLUICEGATE_BACKEND_<NAME>. Set the secret
    that is shared with the gateways as SLUICEGATE_BACKEND_TOKEN.
    """
    with _one_line("backend"):
        # Options have the names of settings.
        settings = read_settings(None, **options)
        configure_logging()
        check_runtime(settings)
        for problem in unknown_variables(process_environment()):
            _log.warning(problem)
        serve(settings)


def check_runtime(settings: BackendSettings) -> None:
    """Check that the installed ONNX Runtime can use the device.

    Call this before ONNX Runtime is imported.

    The function also makes CUDA number GPUs in the same order as the driver and `nvidia-smi`.

    Raises:
        StartProblem: two builds of ONNX Runtime are installed, or the provider needs a GPU and
            there is none.
    """
    if conflict := conflict_of_runtimes():
        raise StartProblem(conflict)
    if settings.provider not in GPU_PROVIDERS:
        return
    found = find_gpus()
    if found.reason:
        raise StartProblem(
            f"the provider `{settings.provider}` cannot run: {found.reason}. To run models on the "
            "CPU, set `SLUICEGATE_BACKEND_PROVIDER` to `cpu`"
        )
    order = process_environment().setdefault("CUDA_DEVICE_ORDER", _ORDER)
    visible = process_environment().get("CUDA_VISIBLE_DEVICES", "")
    is_numbered = not visible.startswith(("GPU-", "MIG-"))
    if order != _ORDER and is_numbered and (visible or len(found.gpus) > 1):
        _log.warning(
            "`CUDA_DEVICE_ORDER` is `%s`, so CUDA and the driver may number GPUs differently, and "
            "this backend may watch and measure the wrong GPU. Unset it, or name GPUs by UUID in "
            "`CUDA_VISIBLE_DEVICES`",
            order,
        )


@main.group("models", cls=_OneLineGroup)
def models_group() -> None:
    """Inspect, import, tune and copy the models of a repository."""


# `sluicegate backend` calls the command by this name, so that its help shows the name.
main.add_command(serve_command, "backend")
models_group.add_command(tune_command)
models_group.add_command(compare_command)
models_group.add_command(import_command)
models_group.add_command(optimize_command)
models_group.add_command(push_command)
models_group.add_command(sync_command)


@models_group.command("list")
@_MODELS
@_MORE_MODELS
@_JSON
def list_command(models: Path | None, more_models: Path | None, *, as_json: bool) -> None:
    """List the models that a backend would serve, and the broken models."""
    settings = read_settings(models=models, more_models=more_models)
    catalogue = _read(settings)
    infos, problems = describe(catalogue)
    _print(infos, problems, as_json=as_json)


@models_group.command("check")
@_MODELS
@_MORE_MODELS
@_JSON
def check_command(models: Path | None, more_models: Path | None, *, as_json: bool) -> None:
    """Load every model and run it once; exit with status 1 if a model is broken.

    Properties that `model.yaml` does not state are inferred from other files. The command shows
    these properties and files.
    """
    settings = read_settings(models=models, more_models=more_models)
    infos, problems = asyncio.run(_load_all(settings))
    catalogue = _read(settings)
    _print(infos, problems, as_json=as_json, models=catalogue.models)
    if problems:
        sys.exit(1)


for _name, _example in _EXAMPLES.items():
    models_group.commands[_name].epilog = f"\b\nExample:\n  sluicegate {_example}"


def _read(settings: BackendSettings) -> Catalogue:
    return read_catalogue(settings.models, servers(settings), more=settings.more_models)


async def _load_all(settings: BackendSettings) -> tuple[list[ModelInfo], dict[str, str]]:
    opener = executor_opener(settings)
    async with open_backend(settings, tracing=NO_TRACING, open_executor=opener) as repository:
        return repository.core.state().models, dict(repository.core.model_set.problems)


def _print(
    infos: list[ModelInfo],
    problems: dict[str, str],
    *,
    as_json: bool,
    models: Mapping[str, Model] | None = None,
) -> None:
    inferred = {name: model for name, model in (models or {}).items() if model.inferred}
    if as_json:
        document: dict[str, object] = {"models": msgspec.to_builtins(infos), "problems": problems}
        if inferred:
            document["inferred"] = {name: model.inferred for name, model in inferred.items()}
        click.echo(json.dumps(document, indent=2))
        return
    for info in infos:
        tasks = ", ".join(info.tasks) or "(only for other models)"
        click.echo(f"{info.name:24} {info.revision}  {info.profile:6} {tasks}")
        if model := inferred.get(info.name):
            for line in describe_model(info, model):
                click.echo(f"    {line}")
    for name, reason in problems.items():
        click.echo(f"{name:24} broken: {reason}", err=True)


@contextmanager
def _one_line(command: str) -> Iterator[None]:
    """Print a `StartProblem` as one line and exit with status 2."""
    try:
        yield
    except StartProblem as error:
        click.echo(f"sluicegate {command}: {error}", err=True)
        sys.exit(_CANNOT_START)
