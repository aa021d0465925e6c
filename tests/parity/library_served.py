"""Imports checkpoints that the libraries wrote, and compares what is served with their answers.

`python -m tests.parity.library_served FOLDER` prints a line for each that differs, and a table.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing.import_model import import_model
from sluicegate.backends.settings import BackendSettings
from sluicegate.wire.protocol import (
    Done,
    EmbedParameters,
    EntitiesParameters,
    Parameters,
    RerankParameters,
    Task,
    ZeroShotParameters,
)
from tests.parity.comparison import TOLERANCE
from tests.parity.library_answers import (
    CANDIDATES,
    DECODERS,
    FAMILIES,
    INSTRUCTION,
    PROMPT_NAMES,
    TEMPLATE,
    LibraryAnswers,
    read_answers,
)
from tests.support.backend_calls import Backend, running_backend

_KINDS = ("equal", "refused", "only served", "differs")
_PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
_BEGIN, _END = "<!-- table of the libraries' checkpoints: make parity -->", "<!-- its end -->"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Says how an import compares: `equal`, `refused`, `differs`, or what the libraries fail on."""

    name: str
    family: str
    kind: str
    detail: str = ""


def import_folder(folder: Path, models: Path) -> str | None:
    """Import a checkpoint by its folder's name; return why it was refused, if it was."""
    models.mkdir(exist_ok=True)
    try:
        import_model(
            folder,
            BackendSettings(models=models, threads=1),
            name=folder.name,
            given={},
            variant=None,
            dry_run=False,
            echo=lambda _: None,
        )
    except StartProblem as error:
        return str(error)
    return None


async def compare_folders(folders: Sequence[Path], models: Path) -> list[Verdict]:
    """Import all, serve those that were not refused, and compare their answers."""
    found = []
    refused = {}
    for folder in folders:
        reason = await asyncio.to_thread(import_folder, folder, models)
        if reason is not None:
            refused[folder] = reason
    async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
        for folder in folders:
            expected = read_answers(folder)
            if folder in refused:
                kind, detail = "refused", refused[folder]
            else:
                kind, detail = await _compare(backend, expected)
            found.append(
                Verdict(name=folder.name, family=expected.family, kind=kind, detail=detail)
            )
    return found


async def _compare(backend: Backend, expected: LibraryAnswers) -> tuple[str, str]:
    served = LibraryAnswers(**{f: getattr(expected, f) for f in expected.__struct_fields__})
    served.scores = {}
    if expected.failure is not None:
        return "only served", expected.failure
    try:
        await _answer(backend, served)
    except AssertionError as error:
        return "differs", f"an item fails: {error}"
    apart = [
        f"{task}: {reason}"
        for task, right in expected.scores.items()
        if (reason := _apart(served.scores.get(task), right))
    ]
    return ("differs", "; ".join(apart)) if apart else ("equal", "")


def _apart(served: Any, expected: Any) -> str:
    """Return how answers are apart, where they are; empty if they are not."""
    if served is None:
        return "it is not served"
    for place, (one, other) in enumerate(zip(served, expected, strict=True)):
        left, right = np.array(one, dtype=float), np.array(other, dtype=float)
        if left.shape != right.shape:
            return f"text {place}: {left.shape} and {right.shape}"
        if left.size and not np.abs(left - right).max() <= TOLERANCE:
            return f"text {place}: by {np.abs(left - right).max():.2g}"
    return ""


async def _answer(backend: Backend, found: LibraryAnswers) -> None:
    """Ask for what the libraries were asked for."""

    async def ask(task: Task, items: Sequence[Any], given: Parameters | None = None) -> list[Any]:
        outcomes = await backend.ask(found.name, task, list(items), parameters=given)
        answers = []
        for outcome in outcomes:
            assert isinstance(outcome, Done), outcome
            answers.append(msgspec.json.decode(outcome.result))
        return answers

    texts = found.texts
    if found.family in DECODERS:
        await _answer_decoder(backend, found)
    elif found.purpose == "text":
        both = [(text, texts[(place + 1) % len(texts)]) for place, text in enumerate(texts)]
        found.scores["single"] = _scores(await ask(Task.CLASSIFY, texts), found.labels)
        found.scores["pair"] = _scores(await ask(Task.CLASSIFY, both), found.labels)
        asked = ZeroShotParameters(labels=CANDIDATES, hypothesis_template=TEMPLATE)
        found.scores["zero-shot"] = _scores(await ask(Task.ZERO_SHOT, texts, asked), CANDIDATES)
    elif found.purpose == "tokens":
        entities = await ask(Task.ENTITIES, texts, EntitiesParameters(aggregation="none"))
        found.scores["entities"] = [
            [[int(e["label"][-1]), e["start"], e["end"], e["score"]] for e in answer["entities"]]
            for answer in entities
        ]
    elif found.purpose == "choice":
        items = [{"prompt": text, "choices": texts[:3]} for text in texts]
        found.scores["choice"] = [answer["scores"] for answer in await ask(Task.CHOOSE, items)]
    elif found.purpose == "embed":
        vectors = await ask(Task.EMBED, texts)
        found.scores["embedding"] = [answer["embedding"] for answer in vectors]
    else:
        scored = await ask(Task.RERANK, texts, RerankParameters(query=texts[0]))
        found.scores["rerank"] = [answer["score"] for answer in scored]


async def _answer_decoder(backend: Backend, found: LibraryAnswers) -> None:
    """Ask about all texts, in one call and alone."""

    async def ask(task: Task, field: str, key: str, given: Parameters | None = None) -> None:
        asked = {"parameters": given}
        outcomes = await backend.ask(found.name, task, list(found.texts), **asked)
        failed = next((o for o in outcomes if not isinstance(o, Done)), None)
        assert failed is None, failed
        batched = [msgspec.json.decode(o.result)[field] for o in outcomes if isinstance(o, Done)]
        # Rows of another scope are computed again.
        found.scores[key] = [
            (await backend.answer(found.name, task, text, scope="alone", **asked))[field]
            for text in found.texts
        ]
        found.scores[f"{key} batched"] = batched

    if found.purpose == "embed":
        for name in ("", *PROMPT_NAMES):
            given = EmbedParameters(prompt_name=name) if name else EmbedParameters()
            await ask(Task.EMBED, "embedding", f"embedding {name}".strip(), given)
    elif found.purpose == "text":
        await ask(Task.CLASSIFY, "labels", "single")
        for key in ("single", "single batched"):
            answers = [{"labels": labels} for labels in found.scores[key]]
            found.scores[key] = _scores(answers, found.labels)
    else:
        query = found.texts[0]
        await ask(Task.RERANK, "score", "rerank", RerankParameters(query=query))
        if found.purpose in {"rank", "card"}:
            told = RerankParameters(query=query, instruction=INSTRUCTION)
            await ask(Task.RERANK, "score", "rerank instructed", told)


def _scores(answers: list[Any], labels: list[str]) -> list[list[float]]:
    lines = []
    for answer in answers:
        found = {label["label"]: label["score"] for label in answer["labels"]}
        lines.append([found[label] for label in labels])
    return lines


def compare_all(root: Path) -> list[Verdict]:
    """Compare every checkpoint in a folder, family by family."""
    families: dict[str, list[Path]] = {}
    for path in sorted(path for path in root.iterdir() if path.is_dir()):
        families.setdefault(read_answers(path).family, []).append(path)
    verdicts = []
    for folders in families.values():
        with tempfile.TemporaryDirectory() as models:
            verdicts += asyncio.run(compare_folders(folders, Path(models)))
    return verdicts


def make_table(verdicts: Sequence[Verdict]) -> str:
    """Return a table of families."""
    counted = Counter((verdict.family, verdict.kind) for verdict in verdicts)
    families = [family for family in FAMILIES if any(v.family == family for v in verdicts)]
    lines = [["family", "checkpoints", *_KINDS], ["---"] * (len(_KINDS) + 2)]
    for family in families:
        total = sum(verdict.family == family for verdict in verdicts)
        lines.append([family, str(total), *(str(counted[family, kind]) for kind in _KINDS)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Compare the checkpoints of a folder; fail where one differs in silence."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table to docs/parity.md")
    given = parser.parse_args()
    verdicts = compare_all(given.folder)
    for verdict in verdicts:
        if verdict.kind != "equal":
            notes = "; ".join(read_answers(given.folder / verdict.name).notes)
            sys.stdout.write(f"{verdict.name} ({notes}): {verdict.kind}: {verdict.detail}\n")
    table = make_table(verdicts)
    sys.stdout.write(f"{table}\n")
    if given.write:
        before, rest = _PAGE.read_text(encoding="utf-8").split(_BEGIN)
        after = rest.split(_END)[1]
        _PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")
    if any(verdict.kind == "differs" for verdict in verdicts):
        sys.exit("answers differ")


if __name__ == "__main__":
    main()
