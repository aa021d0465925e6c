"""Holds the report of an import, which the command prints as lines or as JSON."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.backends.model_tools.description import Field
from sluicegate.backends.model_tools.importing.comparison import Comparison
from sluicegate.backends.model_tools.trials.examples import AnsweredExample
from sluicegate.backends.model_tools.trials.showing import (
    curl,
    describe_results,
    request_body,
)
from sluicegate.backends.model_tools.tuning.options import Echo
from sluicegate.backends.model_tools.tuning.price import Price

_WIDTH = 22


class ImportReport(msgspec.Struct, kw_only=True):
    """Holds what an import found and did.

    `comparison` and `price` are `None` if they were not asked for. `accepted` is false
    if the results differ from the reference library's, if a demanded comparison could not be made,
    or if the variant in another precision was not accepted. `next` has commands.
    """

    model: str
    source: str
    origin: str
    fields: list[Field]
    left_out: list[str] = []
    examples: list[AnsweredExample] = []
    comparison: Comparison | None = None
    price: Price | str | None = None
    written: list[str] = []
    accepted: bool = True
    next: list[str] = []

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values; an example is the request that gives its results."""
        shown: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(self, examples=[]))
        shown["examples"] = [
            {
                "task": each.example.task,
                "source": each.example.source,
                "request": request_body(each.example, self.model),
                "results": each.results,
            }
            for each in self.examples
        ]
        return shown


def describe_import(report: ImportReport) -> list[str]:
    """Return the lines that show what was read from a checkpoint, and what the model answers."""
    examples = [line for each in report.examples for line in describe_results(each)]
    return [
        *_lines("made of", [report.origin]),
        *(f"{'left out':{_WIDTH}} {line}" for line in report.left_out),
        *(field.line() for field in report.fields),
        *_lines("examples", examples),
    ]


def show(echo: Echo, title: str, lines: Sequence[str]) -> None:
    """Print lines under a title."""
    for line in _lines(title, lines):
        echo(line)


def next_steps(root: Path, name: str, examples: Sequence[AnsweredExample]) -> list[str]:
    """Return the commands that serve the model, ask it, and copy it to other machines."""
    folder = shlex.quote(str(root))
    steps = [f"sluicegate up --models {folder}  # if it runs already: sluicegate models reload"]
    if examples:
        steps.append(curl(examples[0].example, name))
    return [*steps, f"sluicegate models push {folder} s3://BUCKET/models"]


def _lines(title: str, lines: Sequence[str]) -> list[str]:
    titles = [title, *([""] * len(lines))]
    return [f"{first:{_WIDTH}} {line}" for first, line in zip(titles, lines, strict=False)]
