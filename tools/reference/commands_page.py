"""Writes the reference of commands from the `--help` texts of `sluicegate`."""

import inspect
import re

import click

from sluicegate.gateway.cli.examples import all_commands
from sluicegate.gateway.cli.root import main
from tools.reference.markdown import NOTE, cell, fence, table

_TEXT = """\
For operators and model owners. `sluicegate COMMAND --help` prints the same text.
[Commands](../operations/commands.md) explains exit codes, and how commands find a gateway.
"""


def commands_page() -> str:
    """Return the page: a table of all commands, and a section for each command."""
    found = [
        click.Context(command, info_name=f"sluicegate {words}")
        for words, command in all_commands(main)
    ]
    listed = table(
        ("command", "does"), ((_link(c), c.command.get_short_help_str(200)) for c in found)
    )
    sections = "".join(map(_section, found))
    return f"# Every command\n\n{NOTE}\n{_TEXT}\n{listed}{sections}".rstrip() + "\n"


def _link(context: click.Context) -> str:
    return f"[`{context.info_name}`](#{str(context.info_name).replace(' ', '-')})"


def _section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([str(context.info_name), *command.collect_usage_pieces(context)])
    options = [
        record
        for one in command.params
        if isinstance(one, click.Option) and (record := one.get_help_record(context))
    ]
    example = (command.epilog or "").partition("Example:\n")[2]
    return (
        f"## {context.info_name}\n\n`{usage}`\n\n{_plain(inspect.cleandoc(command.help or ''))}\n\n"
        + (table(("option", "meaning"), map(_row, options)) if options else "")
        + (fence("", inspect.cleandoc(example)) if example else "")
    )


def _row(record: tuple[str, str]) -> tuple[str, str]:
    return f"`{cell(record[0])}`", cell(_plain(record[1]))


def _plain(text: str) -> str:
    """Return help text as Markdown: without click's list markers, and with placeholders as code."""
    return re.sub(r"(<[\w-]+>(?:/[\w.-]*\w)?)", r"`\1`", text.replace("\b\n", ""))
