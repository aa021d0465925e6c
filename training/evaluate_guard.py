"""Measures the detectors of the demonstration's guard on texts that they were not trained on.

python -m training.evaluate_guard --models MODELS --config config/models.yaml \
    --sst2 sst2_train.parquet --wikigold wikigold.conll --wnut-test wnut17_test.conll \
    --banking banking77_test.csv

The formats have no texts with known contacts. So contacts are generated, one in each of Banking77's
test questions. The random numbers have a fixed seed.
"""

import argparse
import asyncio
import csv
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import msgspec
import yaml

from sluicegate.backends.algorithms.base import all_of
from sluicegate.backends.model_tools.running import answer, open_model
from sluicegate.backends.serving.core import ModelSetEntry
from sluicegate.backends.settings import read_settings
from sluicegate.wire.guards import AnyDetector
from sluicegate.wire.protocol import GuardParameters, Task
from training.conll import read_conll, spans
from training.entities_demo import TEST_EVERY
from training.sentiment import read_sst2

_AT_ONCE = 32
_THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
Span = tuple[int, int]


async def _evaluate(options: argparse.Namespace) -> None:
    document = yaml.safe_load(options.config.read_text(encoding="utf-8"))
    guard = document["guards"]["chat"]
    detectors = {one["name"]: one for one in guard["detectors"]}
    async with open_model(read_settings(models=options.models), guard["model"]) as entry:
        await _evaluate_anger(entry, detectors["anger"], options.sst2)
        wikigold = list(read_conll(options.wikigold))[::TEST_EVERY]
        await _evaluate_people(entry, detectors["people"], "Wikigold", wikigold)
        wnut = list(read_conll(options.wnut_test))
        await _evaluate_people(entry, detectors["people"], "WNUT 2017", wnut)
        await _evaluate_contacts(entry, detectors["contacts"], options.banking)


async def _evaluate_anger(entry: ModelSetEntry, detector: dict[str, Any], path: Path) -> None:
    test = read_sst2(path)[1]
    found = await _findings(entry, detector | {"labels": {"negative": 0.0}}, test.texts)
    scores = [one["score"] for (one,) in found]
    for threshold in _THRESHOLDS:
        hits = [score >= threshold for score in scores]
        right = sum(hit and label == 0 for hit, label in zip(hits, test.labels, strict=True))
        _show(f"anger, SST-2, {threshold}", right, sum(hits), int((test.labels == 0).sum()))


async def _evaluate_people(
    entry: ModelSetEntry, detector: dict[str, Any], name: str, sentences: Sequence[Any]
) -> None:
    texts = [" ".join(word for word, _ in sentence) for sentence in sentences]
    found = await _findings(entry, detector | {"labels": {"PER": 0.0}}, texts)
    people = [set(_people(sentence)) for sentence in sentences]
    for threshold in _THRESHOLDS:
        hits = [
            {(one["start"], one["end"]) for one in line if one["score"] >= threshold}
            for line in found
        ]
        right = sum(len(some & true) for some, true in zip(hits, people, strict=True))
        _show(f"people, {name}, {threshold}", right, sum(map(len, hits)), sum(map(len, people)))


def _people(sentence: Sequence[tuple[str, str]]) -> Iterator[Span]:
    """Yield the characters of each person in a sentence."""
    starts = [0]
    for word, _ in sentence:
        starts.append(starts[-1] + len(word) + 1)
    for first, last, kind in spans([tag for _, tag in sentence]):
        if kind == "PER":
            yield starts[first], starts[last] - 1


async def _evaluate_contacts(entry: ModelSetEntry, detector: dict[str, Any], path: Path) -> None:
    with path.open(encoding="utf-8", newline="") as file:
        questions = [row["text"] for row in csv.DictReader(file)]
    plain = await _findings(entry, detector, questions)
    print(f"contacts: {sum(map(len, plain))} in {len(questions)} questions without contacts")
    source = random.Random(0)  # noqa: S311 - the numbers of a test
    for kind, make in _MAKERS.items():
        values = [make(source) for _ in questions]
        broken = list(map(_broken, values)) if kind in _CHECKED else []
        for name, written in (("right", values), ("with a wrong digit", broken)):
            if not written:
                continue
            texts = [f"{text} {value}" for text, value in zip(questions, written, strict=True)]
            whole = [
                (len(text) + 1, len(full)) for text, full in zip(questions, texts, strict=True)
            ]
            found = await _findings(entry, detector, texts)
            hits = sum(
                any(one["label"] == kind and (one["start"], one["end"]) == place for one in line)
                for line, place in zip(found, whole, strict=True)
            )
            print(f"contacts, {kind}, {name}: {hits} of {len(texts)}")


def _card(source: random.Random) -> str:
    """Return a number of 16 digits whose last digit is right (Luhn 1960)."""
    number = "4" + _digits(source, 14)
    doubled = [int(digit) * (2 - place % 2) for place, digit in enumerate(number)]
    check = -sum(sum(divmod(value, 10)) for value in doubled) % 10
    return _in_fours(source, f"{number}{check}")


def _iban(source: random.Random) -> str:
    """Return a German account number whose check digits are right (ISO 13616)."""
    account = _digits(source, 18)
    check = 98 - int(f"{account}131400") % 97  # D is 13, and E is 14
    return _in_fours(source, f"DE{check:02}{account}")


def _email(source: random.Random) -> str:
    first, second, third = ("".join(source.choices(ascii_lowercase, k=6)) for _ in range(3))
    return source.choice([f"{first}@{second}.com", f"{first}.{second}@mail.{third}.org"])


def _phone(source: random.Random) -> str:
    return f"+{source.randint(30, 49)}{source.choice(['', ' '])}" + _digits(source, 10)


def _digits(source: random.Random, count: int) -> str:
    return "".join(source.choices(digits, k=count))


def _in_fours(source: random.Random, text: str) -> str:
    return source.choice(["", " "]).join(text[at : at + 4] for at in range(0, len(text), 4))


def _broken(value: str) -> str:
    """Return a value whose last digit is another one."""
    return f"{value[:-1]}{(int(value[-1]) + 1) % 10}"


_MAKERS = {"EMAIL": _email, "PHONE": _phone, "CREDIT_CARD": _card, "IBAN": _iban}
_CHECKED = ("CREDIT_CARD", "IBAN")


async def _findings(
    entry: ModelSetEntry, detector: dict[str, Any], texts: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Return what one detector finds in each text."""
    parameters = GuardParameters(detectors=(msgspec.convert(detector, AnyDetector),))
    slots = asyncio.Semaphore(_AT_ONCE)

    async def judge(text: str) -> list[dict[str, Any]]:
        async with slots:
            found: list[dict[str, Any]] = (await answer(entry, Task.GUARD, text, parameters))[
                "findings"
            ]
            return found

    return await all_of(judge(text) for text in texts)


def _show(name: str, right: int, found: int, wanted: int) -> None:
    precision = right / found if found else 1.0
    print(f"{name}: precision {precision:.1%}, recall {right / wanted:.1%} of {wanted}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("models", "config", "sst2", "wikigold", "wnut-test", "banking"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    asyncio.run(_evaluate(_options()))
