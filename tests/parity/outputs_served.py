"""Serves models with several outputs, and compares the results with those of the libraries.

`python -m tests.parity.outputs_served FOLDER` reads what `output_checkpoints` wrote.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sluicegate.wire.protocol import Done, EmbedItem, RerankParameters, Task
from tests.parity.comparison import TOLERANCE
from tests.parity.library_answers import POOL_FACTOR, LibraryAnswers, read_answers
from tests.parity.library_served import import_folder
from tests.support.backend_calls import Backend, running_backend


async def largest_differences(folders: Sequence[Path], models: Path) -> dict[str, float]:
    """Import and serve checkpoints; return the largest difference of each one's outputs.

    Every other text is asked for alone, and then all texts together.
    """
    for folder in folders:
        reason = await asyncio.to_thread(import_folder, folder, models)
        if reason is not None:
            raise AssertionError(f"{folder.name}: {reason}")
    found: dict[str, float] = {}
    async with running_backend(models, threads=1, max_queue_rows=8192) as backend:
        for folder in folders:
            expected = read_answers(folder)
            for name, right in expected.scores.items():
                texts = expected.texts
                alone = [(await _ask(backend, expected, name, [text]))[0] for text in texts[::2]]
                together = await _ask(backend, expected, name, texts)
                found[f"{folder.name} {name}"] = max(
                    _apart(alone, right[::2]), _apart(together, right)
                )
    return found


async def _ask(
    backend: Backend, expected: LibraryAnswers, name: str, texts: Sequence[str]
) -> list[Any]:
    if name == "rerank":
        asked = RerankParameters(query=expected.texts[0])
        answers = await _results(backend, expected.name, Task.RERANK, texts, asked)
        return [answer["score"] for answer in answers]
    if name == "embedding":
        answers = await _results(backend, expected.name, Task.EMBED, texts)
        return [answer["embedding"] for answer in answers]
    items = [_item(text, name) for text in texts]
    answers = await _results(backend, expected.name, Task.EMBED, items)
    if name == "sparse":
        columns = [(each["sparse"]["indices"], each["sparse"]["values"]) for each in answers]
        return [list(zip(*each, strict=True)) for each in columns]
    vectors = [answer["multi_vector"] for answer in answers]
    return [sorted(each) for each in vectors] if name == "pooled" else vectors


def _item(text: str, name: str) -> EmbedItem:
    if name == "sparse":
        return EmbedItem(input=text, output="sparse")
    factor = POOL_FACTOR if name == "pooled" else 1
    return EmbedItem(
        input=text, output="multi_vector", is_query=name == "query", pool_factor=factor
    )


async def _results(
    backend: Backend, model: str, task: Task, items: Sequence[Any], parameters: Any = None
) -> list[Any]:
    outcomes = await backend.ask(model, task, list(items), parameters=parameters)
    results = []
    for outcome in outcomes:
        assert isinstance(outcome, Done), outcome
        results.append(msgspec.json.decode(outcome.result))
    return results


def _apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference, relative to values above 1.

    It is infinite for answers of different shapes.
    """
    return max(_difference(one, other) for one, other in zip(found, expected, strict=True))


def _difference(found: Any, expected: Any) -> float:
    if isinstance(found, list) and found and isinstance(found[0], tuple):
        # A weight near zero may be left out.
        left, right = dict(found), {int(place): value for place, value in expected}
        places = {*left, *right}
        found = [left.get(place, 0.0) for place in places]
        expected = [right.get(place, 0.0) for place in places]
    left_array, right_array = np.array(found), np.array(expected)
    if left_array.shape != right_array.shape:
        return float("inf")
    apart = np.abs(left_array - right_array) / np.maximum(1.0, np.abs(right_array))
    return float(apart.max(initial=0.0))


def main() -> None:
    """Print the difference of every output, and fail if one is too large."""
    root = Path(sys.argv[1])
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    with tempfile.TemporaryDirectory() as models:
        found = asyncio.run(largest_differences(folders, Path(models)))
    for name, difference in found.items():
        sys.stdout.write(f"{name}: {difference:.1e}\n")
    wrong = [name for name, difference in found.items() if not difference <= TOLERANCE]
    if wrong:
        sys.exit(f"answers differ by more than {TOLERANCE}: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
