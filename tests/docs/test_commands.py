"""Commands of `sluicegate` in the pages exist, and take their options and arguments."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from sluicegate.gateway.cli.root import main
from tests.docs.tables import ROOT, page

_BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = ["README.md", *(p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("docs/**/*.md")))]


def commands(name: str) -> Iterator[str]:
    """Yield the lines of fenced blocks that call `sluicegate`, without comments."""
    for block in _BLOCK.findall(page(name)):
        for line in re.split(r"\n| && ", block.replace("\\\n", " ")):
            if re.match(r"sluicegate [a-z]", line):
                yield line


def problem(line: str) -> str:
    """Return what is wrong with a command; empty where it could be given."""
    words = shlex.split(line, comments=True)[1:]
    command: click.Command = main
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0]) if words else None
        if found is None:
            return f"there is no command {words[:1]}"
        command = found
        del words[0]
    if command.context_settings.get("ignore_unknown_options"):
        return ""  # another program reads them
    options = {name: one for one in command.params for name in one.opts + one.secondary_opts}
    places = sum(
        one.nargs if one.nargs > 0 else len(words)
        for one in command.params
        if isinstance(one, click.Argument)
    )
    while words:
        word, has_value, _ = words.pop(0).partition("=")
        if not word.startswith("-"):
            places -= 1
        elif word not in options:
            return f"there is no option {word}"
        elif isinstance(option := options[word], click.Option) and not option.is_flag:
            del words[: 0 if has_value else option.nargs]
    return "" if places >= 0 else "there are too many arguments"


def test_every_command_could_be_given() -> None:
    every = ((name, line) for name in PAGES for line in commands(name))
    wrong = [(*each, found) for each in every if (found := problem(each[1]))]

    assert wrong == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sluicegate config check my-config", ""),
        ("sluicegate config check --config my-config", "there is no option --config"),
        ("sluicegate key create acme", "there is no command ['key']"),
        ("sluicegate config check one two", "there are too many arguments"),
    ],
)
def test_a_command_that_could_not_be_given_is_noticed(line: str, found: str) -> None:
    assert problem(line) == found
