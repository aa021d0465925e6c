"""Measures the accuracy of the demo models through the API of a running system.

python -m training.evaluate --url http://127.0.0.1:8080 --key KEY \
    --banking banking77_test.csv --sst2 sst2_train.parquet --ag-news ag_news_test.csv
"""

import argparse
import asyncio
import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq

_CHUNK = 64
_AT_ONCE = 4
_HELD_OUT_OF, _HELD_OUT = 32, 7
_TOPICS = ("world politics", "sports", "business", "science and technology")


class Api:
    """A client of a running system."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "x-request-timeout": "60"}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=90)

    async def rows(self, body: dict[str, Any]) -> int:
        """Return how many rows a request used, summed over all its models."""
        headers = {"cache-control": "no-cache"}
        response = await self._client.post("/v1/classify", json=body, headers=headers)
        response.raise_for_status()
        return sum(map(int, re.findall(r"=(\d+)", response.headers["sluicegate-rows"])))

    async def best(self, path: str, body: dict[str, Any], texts: Sequence[str]) -> list[str]:
        """Return the best label of each text. A few requests are in flight at the same time."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def ask(chunk: Sequence[str]) -> list[str]:
            async with gate:
                response = await self._client.post(path, json=body | {"input": list(chunk)})
                response.raise_for_status()
                return [result["labels"][0]["label"] for result in response.json()["results"]]

        chunks = [texts[at : at + _CHUNK] for at in range(0, len(texts), _CHUNK)]
        answers = await asyncio.gather(*map(ask, chunks))
        return [label for labels in answers for label in labels]

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


async def _evaluate(options: argparse.Namespace) -> None:
    api = Api(options.url, options.key)
    intents = _read(options.banking)[1:]
    found = await api.best(
        "/v1/classify", {"model": "banking-intents", "top_k": 1}, [text for text, _ in intents]
    )
    _show("banking-intents", found, [intent for _, intent in intents])

    columns = ["idx", "sentence", "label"]
    rows_of_sst2 = pq.read_table(options.sst2, columns=columns).to_pylist()
    held_out = [row for row in rows_of_sst2 if row["idx"] % _HELD_OUT_OF == _HELD_OUT]
    texts = [row["sentence"] for row in held_out]
    expected = [("negative", "positive")[row["label"]] for row in held_out]
    for model in ("sentiment-small", "sentiment", "sentiment-cascade"):
        found = await api.best("/v1/classify", {"model": model}, texts)
        _show(model, found, expected)
    rows = await api.rows({"model": "sentiment-cascade", "input": texts[:1000]})
    rows += await api.rows({"model": "sentiment-cascade", "input": texts[1000:2000]})
    print(f"sentiment-cascade: {rows - 2000} of 2000 reach the large model")

    news = _read(options.ag_news)
    texts = [f"{title}. {description}" for _, title, description in news]
    body = {
        "model": "topics",
        "labels": list(_TOPICS),
        "hypothesis_template": "This text is about {}.",
    }
    found = await api.best("/v1/zero-shot", body, texts)
    _show("topics", found, [_TOPICS[int(number) - 1] for number, _, _ in news])
    await api.close()


def _read(path: str) -> list[list[str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _show(name: str, found: Sequence[str], expected: Sequence[str]) -> None:
    right = sum(a == b for a, b in zip(found, expected, strict=True))
    print(f"{name}: {right} of {len(expected)} right, {right / len(expected):.2%}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    for name in ("--key", "--banking", "--sst2", "--ag-news"):
        parser.add_argument(name, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(_evaluate(_options()))
