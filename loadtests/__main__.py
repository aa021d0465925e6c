"""Runs a benchmark, a fuzzer, a check or fault tests on this machine: `python -m loadtests NAME`.

`NAME` is a module of `loadtests`, or a package of `loadtests` that has a module `command`.
"""

import ast
import importlib
from collections.abc import Mapping
from pathlib import Path

import click
from typing_extensions import override

_NAMES: Mapping[str, tuple[str, ...]] = {
    "Benchmarks": (
        *("batches", "bulk", "console", "dialect-hits", "gpu", "growth", "hit", "hostile"),
        *("latency", "limits", "memory", "miss", "mixed", "overload", "peers", "pipeline"),
        *("precision", "regions", "rows", "shares", "simulate", "threads", "traced-hits"),
        "whole-requests",
    ),
    "Fuzzers": ("fuzz-amplification", "fuzz-api", "fuzz-dialects", "fuzz-http"),
    "Checks": ("compare", "dashboards", "scaling", "triton"),
    "Faults": ("faults",),
}
_HERE = Path(__file__).parent


def _module(name: str) -> str:
    """Return the full name of the module of a command."""
    own = name.replace("-", "_")
    return f"{own}.command" if (_HERE / own).is_dir() else own


class _Commands(click.Group):
    """Imports the module of the called command, and no module of another command."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _NAMES.values() for name in names]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = vars(importlib.import_module(f"loadtests.{_module(cmd_name)}")).values()
        commands = [each for each in found if isinstance(each, click.Command)]
        return next(each for each in commands if each.name in {cmd_name, "measure"})

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for kind, names in _NAMES.items():
            with formatter.section(kind):
                formatter.write_dl([(name, _purpose(name)) for name in names])


def _purpose(name: str) -> str:
    """Return the first line of a module's docstring, without importing the module."""
    source = (_HERE / f"{_module(name).replace('.', '/')}.py").read_text(encoding="utf-8")
    line = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    return line.partition(": `python -m ")[0]


@click.group(cls=_Commands, context_settings={"show_default": True})
def main() -> None:
    """Measure Sluicegate and a baseline in the same run, fuzz it, or inject faults into it."""


if __name__ == "__main__":
    main()
