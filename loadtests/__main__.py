"""Runs a benchmark, a fuzzer, a check or fault tests on this machine: `python -m loadtests NAME`.

A command is in the module or in the package of its name, or in the module that `_ELSEWHERE` names.
"""

import importlib
from collections.abc import Mapping
from pathlib import Path

import click
from typing_extensions import override

_NAMES: Mapping[str, tuple[str, ...]] = {
    "Benchmarks": (
        *("batches", "billing", "bulk", "console", "dialect-hits", "gpu", "growth", "guards"),
        *("hit", "hostile", "latency", "libraries", "limits", "many-models", "memory", "miss"),
        *("mixed", "overload", "peers", "pipeline", "precision", "regions", "shares"),
        *("simulate", "threads", "traced-hits", "whole-requests"),
    ),
    "Fuzzers": ("fuzz-amplification", "fuzz-api", "fuzz-dialects", "fuzz-http"),
    "Checks": ("compare", "dashboards", "triton"),
    "Faults": ("faults", "simulate-faults"),
}
_ELSEWHERE = {
    **dict.fromkeys(("dialect-hits", "latency", "traced-hits"), "hit"),
    **dict.fromkeys(("batches", "hostile", "shares"), "isolation"),
    **dict.fromkeys(("mixed", "threads"), "batching"),
    "bulk": "miss",
    "regions": "limits",
    "whole-requests": "overload",
}


class _Commands(click.Group):
    """Imports the module of the called command, and no module of another command."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for names in _NAMES.values() for name in names]

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _command(cmd_name) if cmd_name in self.list_commands(ctx) else None

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for kind, names in _NAMES.items():
            with formatter.section(kind):
                commands = ((name, _command(name)) for name in names)
                formatter.write_dl(
                    [(name, each.get_short_help_str(200)) for name, each in commands]
                )


def _command(name: str) -> click.Command:
    module = _ELSEWHERE.get(name, name.replace("-", "_"))
    is_package = (Path(__file__).parent / module).is_dir()
    found = vars(importlib.import_module(f"loadtests.{module}{'.command' * is_package}")).values()
    commands = [each for each in found if isinstance(each, click.Command)]
    return next(each for each in commands if each.name in {name, "measure"})


@click.group(cls=_Commands, context_settings={"show_default": True})
def main() -> None:
    """Measure Sluicegate and a baseline in the same run, fuzz it, or inject faults into it."""


if __name__ == "__main__":
    main()
