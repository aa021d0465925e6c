"""What the command lines of backends share."""

import gc
from pathlib import Path

import click
import pytest

from sluicegate.backends.commands import LazyGroup, say


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


@pytest.mark.parametrize("mark", ["\u061c", "\u200e", "\u200f", "\u202e", "\u2067"])
def test_a_text_cannot_reorder_what_an_operator_reads(
    mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say(f"worse {mark} 1 2 3")

    assert capsys.readouterr().out == "worse \N{REPLACEMENT CHARACTER} 1 2 3\n"
