"""Commands that carry out operations start quickly, exist, and take the declared options."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from sluicegate.gateway.cli.operation_commands import command_of
from sluicegate.gateway.cli.root import main
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Command, Family
from sluicegate.gateway.operations.families import FAMILIES
from sluicegate.gateway.operations.operators import Role
from tests.support.commands import OK, listener

PAT = Command(
    usage="things pat",
    help="Pat all things.",
    example="things pat --times 2",
    prints="patted",
    options={"times": "How often.", "gently": "Pat gently."},
)


def test_commands_of_operations_import_neither_redis_nor_sql() -> None:
    code = (
        "import sys; from sluicegate.gateway.cli.operation_commands import OperationGroup;"
        "from sluicegate.gateway.cli.root import main;"
        "groups = [g for g in main.commands.values() if isinstance(g, OperationGroup)];"
        "print(sum(len(g.list_commands(None)) for g in groups) > len(groups));"
        "print([name for name in ('redis', 'sqlalchemy') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.split() == ["True", "[]"]


def test_every_declared_command_can_be_called() -> None:
    declared = [
        each.command.words
        for family in FAMILIES
        for each in family.operations
        if each.command is not None
    ]

    assert declared
    assert [words for words in declared if resolve(words) is None] == []


def test_a_required_number_is_a_required_option() -> None:
    @Family("operations").operation("POST /admin/pat", "Pat", role=Role.OPERATOR, command=PAT)
    async def pat(_: OperationContext, *, times: int, gently: bool = False) -> dict[str, int]:
        return {"times": times * gently}

    command = command_of(pat, PAT)
    with listener(OK + b"{}") as (there, asked):
        without = CliRunner().invoke(command, there)
        patted = CliRunner().invoke(command, ["--times", "0", *there])

    assert (without.exit_code, patted.output) == (2, "patted\n")
    assert "Missing option '--times'" in without.output
    assert asked == ["/admin/pat?times=0"]


def test_a_flag_that_is_on_by_default_is_refused_because_no_command_could_turn_it_off() -> None:
    async def pat(_: OperationContext, *, times: int = 1, gently: bool = True) -> dict[str, int]:
        return {"times": times * gently}

    declare = Family("operations").operation("POST /admin/pat", "", role=Role.VIEWER, command=PAT)

    with pytest.raises(TypeError, match="`gently` is a flag"):
        declare(pat)


def resolve(words: list[str]) -> click.Command | None:
    command: click.Command | None = main
    for word in words:
        if not isinstance(command, click.Group):
            return None
        command = command.get_command(click.Context(command), word)
    return command
