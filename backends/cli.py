"""Defines the command that serves models; `models` has the model tools."""

import logging
from typing import get_args

import click

from sluicegate.backends.commands import (
    MODELS_OPTION,
    MORE_MODELS_OPTION,
    LazyGroup,
    problems_on_one_line,
)
from sluicegate.backends.errors import StartProblem
from sluicegate.backends.settings import (
    BackendSettings,
    Provider,
    process_environment,
    read_settings,
    unknown_variables,
)
from sluicegate.backends.telemetry.logs import configure_logging
from sluicegate.wire.gpus import GPU_PROVIDERS, find_gpus
from sluicegate.wire.importing import without_collections
from sluicegate.wire.installing import conflict_of_runtimes

_log = logging.getLogger(__name__)
# By default, CUDA numbers the fastest card first.
_ORDER = "PCI_BUS_ID"


@click.group(
    cls=LazyGroup,
    # A serving backend imports no model tools.
    lazy={"models": "sluicegate.backends.model_tools.cli:models_group"},
    context_settings={"help_option_names": ["-h", "--help"]},
)
def main() -> None:
    """Serve the models of a repository, and manage model repositories."""


@main.command(
    "serve", epilog="\b\nExample:\n  sluicegate backend --models ./models --region eu --port 9000"
)
@MODELS_OPTION
@MORE_MODELS_OPTION
@click.option("--host", help="Address to listen on.")
@click.option("--port", type=int, help="Port to listen on.")
@click.option("--region", help="Region of this backend.")
@click.option("--id", "backend_id", help="Name of this backend, unique in its region.")
@click.option("--threads", type=int, help="Number of worker threads; the default is one per core.")
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
    with problems_on_one_line("backend"):
        # Imported late, so that a command such as `models sync` stays small.
        with without_collections():
            from sluicegate.backends.app import serve  # noqa: PLC0415

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


# `sluicegate backend` calls the command by this name, so that its help shows the name.
main.add_command(serve_command, "backend")
