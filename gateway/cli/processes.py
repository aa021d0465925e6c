"""Implements commands that replace their process with another program of this package."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from sluicegate.gateway.cli.failures import Failure
from sluicegate.gateway.supervisor.errors import ExitCode
from sluicegate.wire.installing import install_command

PASS_ARGUMENTS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_WORKERS = ("shipper", "billing", "request-log", "batches")


@click.command(context_settings=PASS_ARGUMENTS, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def backend(arguments: tuple[str, ...]) -> None:
    """Run a backend. It serves the models of a repository to gateways."""
    become("backends", "backend", *arguments)


@click.command(context_settings=PASS_ARGUMENTS, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bulk(arguments: tuple[str, ...]) -> None:
    """Run a model over the rows of files, without a gateway."""
    become("bulk", *arguments)


@click.command(short_help="Run a background process.")
@click.argument("name", type=click.Choice(_WORKERS))
def worker(name: str) -> None:
    """Run one background process: shipper, billing, request log or batches.

    Its settings are in the environment.
    """
    become("gateway", f"run-{name}")


@click.command(short_help="Run the operators' listener alone.")
def admin() -> None:
    """Run only the operators' listener. Its settings are in the environment."""
    become("gateway", "run-admin")


def become(module: str, *arguments: str) -> NoReturn:
    """Replace this process with `python -m sluicegate.MODULE ARGUMENTS`.

    Raises:
        Failure: the module's dependencies are not installed.
    """
    command = _command(module, arguments)
    os.execv(command[0], command)  # noqa: S606


def run(module: str, *arguments: str) -> int:
    """Run `python -m sluicegate.MODULE ARGUMENTS`, and return its exit code.

    Raises:
        Failure: the module's dependencies are not installed.
    """
    command = _command(module, arguments)
    return subprocess.run(command, check=False).returncode  # noqa: S603


def _command(module: str, arguments: Sequence[str]) -> list[str]:
    if module in {"backends", "bulk"} and importlib.util.find_spec("onnxruntime") is None:
        raise Failure(
            f"no model runtime is installed; run {install_command('backend-cpu')}",
            ExitCode.FAILED,
        )
    return [sys.executable, "-P", "-m", f"sluicegate.{module}", *arguments]
