"""Provides the inputs of every model: 500 texts, and pairs, options and queries of them."""

from pathlib import Path

DATA = Path(__file__).parent / "data"
LABELS = ["money", "travel", "sports", "the internet"]
TEMPLATE = "This text is about {}."
OPTIONS = 4
QUERIES = 10
_WORDS = 8


def read_texts() -> list[str]:
    """Return the texts."""
    return (DATA / "texts.txt").read_text(encoding="utf-8").strip("\n").split("\n")


def pairs(texts: list[str]) -> list[tuple[str, str]]:
    """Return each text beside another."""
    return [(text, texts[(place * 7 + 3) % len(texts)]) for place, text in enumerate(texts)]


def questions(texts: list[str]) -> list[tuple[str, list[str]]]:
    """Return each text with the beginnings of others to choose from."""
    beginnings = [" ".join(text.split()[:_WORDS]) for text in texts]
    return [
        (text, [beginnings[(place + 11 * step) % len(texts)] for step in range(1, OPTIONS + 1)])
        for place, text in enumerate(texts)
    ]


def searches(texts: list[str]) -> list[tuple[str, list[str]]]:
    """Return queries, each with documents to rank: every text is a document once."""
    share = len(texts) // QUERIES
    return [
        (texts[(start + share) % len(texts)], texts[start : start + share])
        for start in range(0, len(texts), share)
    ]
