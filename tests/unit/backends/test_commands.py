"""What the command lines of backends share."""

import gc
from pathlib import Path

import click
import pytest

from sluicegate.backends.commands import LazyGroup


def test_a_command_is_imported_without_collections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import gc, click\ncommand = click.Command('late', help=f'collections: {gc.isenabled()}')\n"
    )
    (tmp_path / "late_command.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    group = LazyGroup("group", lazy={"late": "late_command:command"})

    command = group.get_command(click.Context(group), "late")

    assert command is not None
    assert command.help == "collections: False"
    assert gc.isenabled()
