"""The real demo models: the encoder is all-MiniLM-L6-v2, and the heads answer sensibly."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from sluicegate.backends.model_tools.demo.source import find_source
from sluicegate.backends.model_tools.graphs.shapes import BertShape
from sluicegate.backends.model_tools.graphs.weights import read_safetensors
from sluicegate.backends.pipelines.head import HeadWeights, read_head
from sluicegate.backends.types import OutputKind
from tests.support.bert_reference import reference_tokens
from tests.support.graph_runs import Row, open_graph, run_rows

DIMENSIONS = 384
TEXTS = [
    "I can't get any money out of the machine.",
    "A long and winding sentence, full of commas, about nothing: it has to be the longest here.",
    "good",
]


class Minilm:
    """The demo encoder: its tokenizer and its session."""

    def __init__(self, models: Path) -> None:
        folder = models / "minilm" / "1"
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.graph = open_graph(folder / "model.onnx", dimensions=DIMENSIONS)

    def encode(self, text: str) -> Encoding:
        """Return the tokens of a text."""
        return self._tokenizer.encode(text)

    def row(self, text: str) -> Row:
        """Return a text as the graph reads it."""
        encoding = self.encode(text)
        return encoding.ids, encoding.type_ids

    def run(self, text: str, output: OutputKind) -> NDArray[np.float32]:
        """Return an output of one text; `tokens` a line per token."""
        result: NDArray[np.float32] = run_rows(self.graph, [self.row(text)], output)[0]
        return result


@pytest.fixture(scope="module")
def minilm(demo_models: Path) -> Minilm:
    return Minilm(demo_models)


def _head(models: Path, name: str) -> tuple[HeadWeights, list[str]]:
    folder = models / name / "1"
    document = yaml.safe_load((folder / "model.yaml").read_bytes())
    labels: list[str] = document["labels"]
    layers = read_head(folder / document["weights"], inputs=DIMENSIONS, outputs=len(labels))
    weights = HeadWeights(
        layers, activation=document["activation"], normalize_input=document["normalize_input"]
    )
    return weights, labels


def test_the_encoder_equals_the_published_weights(minilm: Minilm) -> None:
    """Alone and padded in a batch, within rounding of the float64 forward pass."""
    source = find_source()
    shape = BertShape.from_config(json.loads((source / "config.json").read_bytes()))
    weights = read_safetensors(source / "model.safetensors")
    rows = [minilm.row(text) for text in TEXTS]

    tokens = run_rows(minilm.graph, rows, OutputKind.TOKENS)
    pooled = run_rows(minilm.graph, rows, OutputKind.POOLED)

    for place, row in enumerate(rows):
        expected = reference_tokens(shape, weights, *row)
        alone = run_rows(minilm.graph, [row], OutputKind.POOLED)[0]
        np.testing.assert_allclose(tokens[place, : len(row[0])], expected, atol=1e-5)
        np.testing.assert_allclose(pooled[place], expected.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(alone, expected.mean(axis=0), atol=1e-5)


def test_meaning_decides_which_embeddings_are_near(minilm: Minilm) -> None:
    """A paraphrase without a common word is nearer than a sentence that shares most words."""
    question, paraphrase, other = (
        vector / np.linalg.norm(vector)
        for vector in (
            minilm.run(text, OutputKind.POOLED)
            for text in ("How do I bake bread?", "Making a loaf at home", "How do I sell a car?")
        )
    )

    assert question @ paraphrase > question @ other


@pytest.mark.parametrize(
    ("model", "text", "label"),
    [
        ("sentiment", "a warm, funny and moving film", "positive"),
        ("sentiment", "dull, lifeless and far too long", "negative"),
        ("banking-intents", "I lost my phone, what now?", "lost_or_stolen_phone"),
        ("banking-intents", "My card still has not arrived.", "card_arrival"),
        ("banking-intents", "How do I change my PIN?", "change_pin"),
    ],
)
def test_a_head_finds_the_label(
    demo_models: Path, minilm: Minilm, model: str, text: str, label: str
) -> None:
    """What anyone would say of an easy sentence, the head says too."""
    head, labels = _head(demo_models, model)

    logits = head.apply(minilm.run(text, OutputKind.POOLED)[None])[0]

    assert labels[logits.argmax()] == label


def test_the_entity_head_finds_names(demo_models: Path, minilm: Minilm) -> None:
    """People, places and organisations of a plain sentence, and nothing in the other words."""
    head, labels = _head(demo_models, "entities-demo")
    text = "Angela Merkel visited Paris with Siemens."

    best = head.apply(minilm.run(text, OutputKind.TOKENS)).argmax(axis=1)

    tokens = minilm.encode(text).tokens
    found = {token: labels[index][2:] for token, index in zip(tokens, best, strict=True) if index}
    names = {"angela": "PER", "mer": "PER", "##kel": "PER", "paris": "LOC", "siemens": "ORG"}
    assert found == names
