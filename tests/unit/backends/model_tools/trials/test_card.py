"""Examples are read from a model card, and a card that has none, or is odd, has no examples."""

from pathlib import Path

import pytest

from sluicegate.backends.model_tools.trials.card import CardInput, read_card

WIDGETS = """---
license: apache-2.0
widget:
  - text: "A witty film."
    example_title: Film
  - source_sentence: That is a happy person
    sentences: [That is a happy dog, Today is a sunny day]
  - text: Who scored?
    context: The striker scored twice.
  - text: My card is lost.
    candidate_labels: billing, cards
  - query: How do I reset my PIN?
    documents: [At any cash machine., We are hiring.]
  - 7
---
# A model
"""
CODE = '''
```python
from sentence_transformers import CrossEncoder
model = CrossEncoder("name")
pairs = [
    ["How many eggs?", "Twelve."],
    ["How many eggs?", "It rains."],
]
scores = model.predict(pairs)
```

```python
queries = ["What is the capital of China?"]
documents = ["Beijing."] + load()
labels = ["person", "city"]
text = """Paris is a city."""
```

```python
>>> sentences = [
```
'''

# Each line has twice the keys of the line before, if the keys are merged.
MERGES = "---\na0: &a0 {k: v}\n" + "".join(
    f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40)
)


def card(folder: Path, text: str) -> list[CardInput]:
    (folder / "README.md").write_text(text, encoding="utf-8")
    return read_card(folder)


def test_widgets_of_the_front_matter_are_examples(tmp_path: Path) -> None:
    text, sentences, question, labels, ranking = card(tmp_path, WIDGETS)

    assert text.texts == ["A witty film."]
    assert sentences.texts[0] == "That is a happy person"
    assert len(sentences.texts) == 3
    assert (question.question, question.context) == ("Who scored?", "The striker scored twice.")
    assert labels.labels == ["billing", "cards"]
    assert (ranking.queries, len(ranking.documents)) == (["How do I reset my PIN?"], 2)
    assert {one.source for one in (text, ranking)} == {"`widget` in README.md"}


def test_literals_of_python_code_are_examples_and_nothing_is_run(tmp_path: Path) -> None:
    pairs, texts = card(tmp_path, CODE)

    assert pairs.pairs == [("How many eggs?", "Twelve."), ("How many eggs?", "It rains.")]
    assert texts.queries == ["What is the capital of China?"]
    assert texts.documents == []  # a call would have to be run
    assert (texts.texts, texts.labels) == (["Paris is a city."], ["person", "city"])
    assert texts.source == "`queries`, `labels`, `text` in README.md"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# No front matter",
        "---\nwidget: [\n---\n",
        "---\nwidget: {text: a}\n---\n",
        "---\n- a list\n---\n",
        "---\nwidget: [{text: [a]}, {sentences: [a]}]\n---\n",
        "```python\ntexts = " + "[" * 5000 + "\n```\n",
        "```python\ntexts = 3\nlabels = ['a']\n```\n",
        "```python\ntexts = ['\\ud83d']\n```\n",
        "```py" + "\n" * (1 << 20),
        "```py\n" * (1 << 17),
        '---\nwidget: [{text: "\\ud83d\\ude00 hi"}]\n---\n',
        '---\nwidget: [{text: "\\UFFFFFFFF"}]\n---\n',
        "---\nwidget: [{text: !!bool maybe, 7: !!int ''}, !!timestamp a]\n*b: c\n---\n",
        "---\n" + "1" + ":1" * (1 << 18) + "\n---\n",
        MERGES + "---\n",
    ],
)
def test_a_card_without_a_readable_example_has_none(tmp_path: Path, text: str) -> None:
    assert card(tmp_path, text) == []


@pytest.mark.parametrize("text", ["yes", "3", "!!bool maybe", "2001-01-01"])
def test_a_widget_is_a_text_without_quotes(tmp_path: Path, text: str) -> None:
    (found,) = card(tmp_path, f"---\nwidget: [{{text: {text}}}]\n---\n")

    assert found.texts == [text.rsplit(maxsplit=1)[-1]]


def test_a_folder_without_a_card_has_no_example(tmp_path: Path) -> None:
    assert read_card(tmp_path) == []
