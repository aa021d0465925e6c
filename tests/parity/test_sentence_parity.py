"""Tests that each module of sentence transformers answers as the recorded reference does."""

import pytest

from tests.parity.comparison import compare
from tests.parity.references import References, read_references, reference_file
from tests.parity.sentence_served import answer_sentences, write_sentence_models
from tests.parity.served import without_device_graphs

pytestmark = pytest.mark.anyio
EXPECTED = read_references(reference_file("sentence"))


@pytest.fixture(scope="module")
async def found(tmp_path_factory: pytest.TempPathFactory) -> References:
    with without_device_graphs():
        models = write_sentence_models(tmp_path_factory.mktemp("sentences"))
    return await answer_sentences(models)


@pytest.mark.parametrize("name", EXPECTED.scores)
async def test_a_module_answers_as_the_reference_does(found: References, name: str) -> None:
    own, expected = References(), References()
    own.scores[name], expected.scores[name] = found.scores[name], EXPECTED.scores[name]

    (line,) = compare(own, expected)

    assert line.is_equal, line


async def test_modules_make_different_vectors() -> None:
    vectors = [scores.tobytes() for name, scores in EXPECTED.scores.items()]

    assert len(set(vectors)) == len(vectors)
