"""Measures the demo models through the API of a running system, on data given by the caller.

python training/evaluate.py --url http://127.0.0.1:8080 --key KEY \
    --banking banking77_test.csv --sst2 sst2_train.parquet --ag-news ag_news_test.csv
"""

import argparse
import asyncio
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pandas as pd

_CHUNK = 64
_AT_ONCE = 4
_HELD_OUT_OF, _HELD_OUT = 32, 7
_TOPICS = ("world politics", "sports", "business", "science and technology")


class Api:
    """A running system; answers the best label of each text."""

    def __init__(self, url: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}", "x-request-timeout": "60"}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=90)

    async def rows(self, body: dict[str, Any]) -> int:
        """Return how many rows of models, computed or known, answered a new request."""
        headers = {"cache-control": "no-cache"}
        response = await self._client.post("/v1/classify", json=body, headers=headers)
        response.raise_for_status()
        return sum(map(int, re.findall(r"=(\d+)", response.headers["sluicegate-rows"])))

    async def best(self, path: str, body: dict[str, Any], texts: Sequence[str]) -> list[str]:
        """Ask in chunks, a few at a time."""
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
    banking = pd.read_csv(options.banking)
    found = await api.best(
        "/v1/classify", {"model": "banking-intents", "top_k": 1}, banking["text"].tolist()
    )
    _show("banking-intents", found, banking["category"].tolist())

    sst2 = pd.read_parquet(options.sst2)
    sst2 = sst2[sst2["idx"] % _HELD_OUT_OF == _HELD_OUT]
    texts = sst2["sentence"].tolist()
    expected = [("negative", "positive")[label] for label in sst2["label"]]
    for model in ("sentiment-small", "sentiment", "sentiment-cascade"):
        found = await api.best("/v1/classify", {"model": model}, texts)
        _show(model, found, expected)
    rows = await api.rows({"model": "sentiment-cascade", "input": texts[:1000]})
    rows += await api.rows({"model": "sentiment-cascade", "input": texts[1000:2000]})
    print(f"sentiment-cascade: {rows - 2000} of 2000 reach the large model")

    news = pd.read_csv(options.ag_news, header=None, names=["class", "title", "description"])
    texts = (news["title"] + ". " + news["description"]).tolist()
    body = {
        "model": "topics",
        "labels": list(_TOPICS),
        "hypothesis_template": "This text is about {}.",
    }
    found = await api.best("/v1/zero-shot", body, texts)
    _show("topics", found, [_TOPICS[number - 1] for number in news["class"]])
    await api.close()


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
