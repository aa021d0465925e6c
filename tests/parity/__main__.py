"""Compares served answers with the references and writes docs/parity.md."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.parity.checkpoints import all_checkpoints
from tests.parity.comparison import TOLERANCE, Difference, compare
from tests.parity.references import References, read_references, reference_file
from tests.parity.sentence_served import answer_sentences, write_sentence_models
from tests.parity.served import MINILM, serving, write_models
from tests.parity.texts import read_texts

PAGE = Path(__file__).parents[2] / "docs" / "parity.md"
_BEGIN, _END = "<!-- table: make parity -->", "<!-- end of table -->"
_HEADINGS = (
    "checkpoint",
    "comparisons",
    "answers",
    "largest difference",
    "labels or places that differ",
)
_PUBLISHED = "MiniLM-L6-v2"
_SENTENCES = "bert, sentence modules"


def main() -> None:
    """Compare, write a row for each checkpoint, and fail where answers differ."""
    found = asyncio.run(_compare_all())
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    after = rest.split(_END)[1]
    rows = [_row(name, differences) for name, differences in found.items()]
    table = "\n".join([_line(_HEADINGS), _line(["---"] * len(_HEADINGS)), *map(_line, rows)])
    PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{after}", encoding="utf-8")
    sys.stdout.write(f"{table}\n")
    if not all(each.is_equal for differences in found.values() for each in differences):
        sys.exit(f"answers differ by more than {TOLERANCE}")


async def _compare_all() -> dict[str, list[Difference]]:
    texts = read_texts()
    found: dict[str, list[Difference]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with serving(write_models(Path(folder))) as served:
            for checkpoint in all_checkpoints():
                expected = read_references(reference_file(checkpoint.name))
                lines = compare(await served.answer(checkpoint, texts), expected)
                name = _PUBLISHED if checkpoint.family == MINILM else checkpoint.family
                found.setdefault(name, []).extend(lines)
                _print(checkpoint.name, lines)
            embeddings = References()
            embeddings.scores["embedding"] = await served.embeddings(MINILM, texts)
            lines = compare(embeddings, read_references(reference_file(MINILM)))
            found[_PUBLISHED].extend(lines)
            _print(_PUBLISHED, lines)
        models = write_sentence_models(Path(folder, "sentences"))
        lines = compare(await answer_sentences(models), read_references(reference_file("sentence")))
        found[_SENTENCES] = lines
        _print(_SENTENCES, lines)
    return found


def _print(name: str, lines: list[Difference]) -> None:
    for line in lines:
        sys.stdout.write(
            f"{name}, {line.task}: {line.answers:,} answers, at most {line.largest:.1e} apart, "
            f"{line.mismatches} labels or places differ\n"
        )


def _row(name: str, lines: list[Difference]) -> list[str]:
    return [
        name,
        str(len(lines)),
        f"{sum(line.answers for line in lines):,}",
        f"{max(line.largest for line in lines):.1e}",
        str(sum(line.mismatches for line in lines)),
    ]


def _line(cells: "list[str] | tuple[str, ...]") -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
