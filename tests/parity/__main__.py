"""Compares served answers with the references and writes docs/parity.md."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.parity.checkpoints import Checkpoint, all_checkpoints
from tests.parity.comparison import TOLERANCE, Difference, compare
from tests.parity.references import References, read_references, reference_file
from tests.parity.sentence_served import answer_sentences, write_sentence_models
from tests.parity.served import MINILM, serving, write_models
from tests.parity.texts import read_texts

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
_BEGIN, _END = "<!-- table: make parity -->", "<!-- end of table -->"
_HEADINGS = (
    "checkpoint",
    "task",
    "answers",
    "largest difference",
    "labels or places that differ",
    "logits spread by",
)
_PUBLISHED = "MiniLM-L6-v2"
_REFERENCES = {
    "embed": "`SentenceTransformer` (mean)",
    "embed-cls": "`SentenceTransformer` (CLS)",
    "cross": "`CrossEncoder`",
    "choice": "`AutoModelForMultipleChoice`",
}


def main() -> None:
    """Compare, write the table, and fail where answers differ."""
    rows, equal = asyncio.run(_compare_all())
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    table = "\n".join([_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *map(_line, rows)])
    PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")
    sys.stdout.write(f"{table}\n")
    if not equal:
        sys.exit(f"answers differ by more than {TOLERANCE}")


async def _compare_all() -> tuple[list[list[str]], bool]:
    texts = read_texts()
    rows: list[list[str]] = []
    equal = True
    with tempfile.TemporaryDirectory() as folder:
        async with serving(write_models(Path(folder))) as served:
            for checkpoint in all_checkpoints():
                expected = read_references(reference_file(checkpoint.name))
                lines = compare(await served.answer(checkpoint, texts), expected)
                equal &= all(line.is_equal for line in lines)
                rows += [_row(checkpoint, line, expected.spread) for line in lines]
            found = References()
            found.scores["embedding"] = await served.embeddings(MINILM, texts)
            (line,) = compare(found, read_references(reference_file(MINILM)))
            rows.append(_cells(_PUBLISHED, "embedding: `SentenceTransformer`", line, 0.0))
        expected = read_references(reference_file("sentence"))
        models = write_sentence_models(Path(folder, "sentences"))
        lines = compare(await answer_sentences(models), expected)
        rows += [_cells("bert, sentence modules", each.task, each, 0.0) for each in lines]
    return rows, equal and all(each.is_equal for each in (line, *lines))


def _row(checkpoint: Checkpoint, line: Difference, spread: float) -> list[str]:
    against = _REFERENCES.get(checkpoint.purpose)
    task = f"{line.task}: {against}" if against else line.task
    if checkpoint.purpose == "many":
        task = f"{line.task}, sigmoid"
    name = _PUBLISHED if checkpoint.family == MINILM else checkpoint.family
    return _cells(name, task, line, spread)


def _cells(name: str, task: str, line: Difference, spread: float) -> list[str]:
    return [
        name,
        task,
        f"{line.answers:,}",
        f"{line.largest:.1e}",
        str(line.mismatches),
        f"{spread:.2f}" if spread else "",
    ]


def _line(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
