"""`models optimize` as a model owner calls it: a model ends served and reported.

`test_import_variants` has the gate's judgement of each kind.
"""

import asyncio
import csv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from sluicegate.backends.cli import main
from sluicegate.backends.model_tools.importing.convert import convert
from sluicegate.backends.qualification.tuned import RECORD
from sluicegate.backends.repository.catalogue import read_catalogue
from sluicegate.wire.protocol import ClassifyParameters, Parameters, Task
from tests.parity.checkpoints import Checkpoint
from tests.parity.sentence_checkpoints import (
    CHECKPOINTS,
    RANKED,
    write_sentence_checkpoint,
)
from tests.parity.served import write_models
from tests.parity.texts import pairs, read_texts
from tests.support.backend_calls import running_backend

KINDS = [
    Checkpoint(family="bert", purpose="many"),
    Checkpoint(family="bert", purpose="embed"),
]
CALLS: Mapping[str, tuple[Task, Parameters | None]] = MappingProxyType(
    {
        "bert-many": (Task.CLASSIFY, ClassifyParameters()),
        "bert-embed": (Task.EMBED, None),
    }
)
# A graph of toy size is no faster in eight bits, and its random answers flip easily.
LOOSE = ("--max-flips", 100, "--max-loss", 100, "--min-cosine", -1, "--min-speedup", 0)


@pytest.fixture
def models(tmp_path: Path, checkpoint: Checkpoint) -> Path:
    root = tmp_path / "models"
    if checkpoint.purpose != "embed":
        return write_models(root, [checkpoint])
    # With a dense layer and prompts.
    dense = next(each for each in CHECKPOINTS if "Dense" in each.name)
    source = msgspec.structs.replace(dense, prompts=RANKED.prompts)
    convert(write_sentence_checkpoint(source, tmp_path / "source"), root / checkpoint.name / "1")
    return root


def optimize(models: Path, name: str, report: Path, *options: object) -> Result:
    texts = report.with_name("texts.txt")
    texts.write_text("\n".join(read_texts()[:60]), encoding="utf-8")
    given = ("--models", models, "--threads", 1, "--texts", texts, "--report", report)
    arguments = ["models", "optimize", name, *given, "--seconds", 0.01, *options]
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.mark.anyio
@pytest.mark.parametrize("checkpoint", KINDS, ids=lambda each: each.name)
async def test_a_model_ends_served_and_reported(
    models: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    page = tmp_path / "report.md"

    result = await asyncio.to_thread(
        optimize, models, checkpoint.name, page, "--price", 1.5, *LOOSE
    )

    assert result.exit_code == 0, result.output
    task, parameters = CALLS[checkpoint.name]
    async with running_backend(models, threads=1) as backend:
        answer: Any = await backend.answer(
            checkpoint.name, task, "Maria flew to Oslo.", parameters=parameters, profile="int8"
        )
        assert backend.info(checkpoint.name).profile == "int8"
    assert answer
    served = read_catalogue(models).models[checkpoint.name]
    assert (served.folder / RECORD).exists()
    if checkpoint.purpose == "embed":
        assert "prompt" in served.inferred
    report = page.read_text(encoding="utf-8")
    assert "| int8 | served |" in report
    assert "| fp32 | reference |" in report
    assert "| fp16 | not tried |" in report
    rows = [line.split(" | ") for line in report.splitlines() if line.startswith("| int8 ")]
    assert float(rows[0][2].replace(",", "")) > 0
    assert "MiB" in rows[0][7]
    assert float(rows[0][8].rstrip(" |")) > 0


@pytest.mark.parametrize("checkpoint", KINDS[:1], ids=lambda each: each.name)
def test_a_dry_run_reports_no_served_variant(
    models: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    page, before = tmp_path / "report.md", read_catalogue(models)

    result = optimize(models, checkpoint.name, page, "--dry-run", *LOOSE)

    assert result.exit_code == 0, result.output
    report = page.read_text(encoding="utf-8")
    assert "| int8 | accepted, fastest |" in report
    assert "served" not in report.lower()
    assert read_catalogue(models) == before


@pytest.mark.parametrize(
    "checkpoint", [Checkpoint(family="bert", purpose="text")], ids=lambda each: each.name
)
def test_a_variant_that_fails_its_gate_is_refused_with_its_numbers(
    models: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Of pairs with labels, here."""
    page, before = tmp_path / "report.md", read_catalogue(models)
    lines = [[*pair, checkpoint.labels[n % 3]] for n, pair in enumerate(pairs(read_texts()[:60]))]
    with (tmp_path / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["premise", "hypothesis", "label"], *lines])

    result = optimize(
        models, checkpoint.name, page, "--texts", tmp_path / "pairs.csv", "--min-speedup", 1000
    )

    assert result.exit_code == 0, result.output
    assert "Refused:" in result.output
    assert read_catalogue(models) == before
    report = page.read_text(encoding="utf-8")
    assert "| int8 | refused |" in report
    assert "| fp32 | served |" in report
    assert "at least 1000 is required" in report
    assert "with 40 texts" in report or "of labels flip" in report
    assert "- accuracy: " in report
    assert (before.models[checkpoint.name].folder / RECORD).exists()
