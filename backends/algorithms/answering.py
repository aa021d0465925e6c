"""Finds the answer to a question in a text, like Hugging Face's pipeline `question-answering`.

The pipeline was last part of `transformers` 4.57. Results are equal, with two exceptions: a span
with a score of 0 is no answer, and an answer is never made of tokens of the question.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from typing_extensions import override

from sluicegate.backends.algorithms.base import Algorithm
from sluicegate.backends.pipelines.ask import AlgorithmContext
from sluicegate.backends.pipelines.encoder import QuestionWindow
from sluicegate.backends.pipelines.scores import exact, softmax
from sluicegate.backends.pipelines.token_work import run_token_work
from sluicegate.backends.types import FloatArray, PlacedTokens
from sluicegate.wire.protocol import AnswerItem, AnswerParameters

# Aligned to words, several spans may be one answer, so the pipeline looks at more of them.
_SPANS_PER_ANSWER, _MORE_SPANS = 2, 10


class _Answer(msgspec.Struct, kw_only=True):
    score: float
    start: int
    end: int


class FindAnswers(Algorithm):
    """Scores spans of a context. Positions count characters of the context as it was sent."""

    def __init__(self, *, model: str, no_answer_token: str | None) -> None:
        self._model = model
        self._no_answer_token = no_answer_token

    @override
    async def run(
        self, item: AnswerItem, parameters: AnswerParameters, ask: AlgorithmContext
    ) -> Any:
        tokens, windows = await ask.question_windows(
            self._model,
            item.question,
            item.context,
            parameters=parameters,
            marked=self._no_answer_token,
        )
        return await run_token_work(
            len(tokens.ids), find_answers, item.context, tokens, windows, parameters
        )


def find_answers(
    context: str,
    tokens: PlacedTokens,
    windows: list[QuestionWindow],
    parameters: AnswerParameters,
) -> dict[str, Any]:
    """Return the best answers of all windows, and the lowest score of "no answer".

    Spans with the same text, apart from case, are one answer. Its place is that of the span that
    was found first, and its score is the sum of the spans' scores.
    """
    answers: dict[str, _Answer] = {}
    no_answer = 1.0
    for window in windows:
        starts, ends, none = _probabilities(window)
        no_answer = min(no_answer, none)
        for first, last, score in _best_spans(starts, ends, parameters):
            start, end = _place(tokens, window, first, last, by_words=parameters.align_to_words)
            found = answers.get(text := context[start:end].lower())
            if found is None:
                answers[text] = _Answer(score=score, start=start, end=end)
            else:
                found.score += score
    best = sorted(answers.values(), key=lambda answer: -answer.score)[: parameters.top_k]
    return {
        "answers": [
            {
                "answer": context[answer.start : answer.end],
                "score": exact(answer.score),
                "start": answer.start,
                "end": answer.end,
            }
            for answer in best
        ],
        "no_answer_score": exact(no_answer),
    }


def _probabilities(window: QuestionWindow) -> tuple[FloatArray, FloatArray, float]:
    """Return the probabilities that the answer starts and ends at each token of the window.

    The third value is the probability that the row's first token is the answer, which stands for
    "no answer".
    """
    place, length = window.place, window.end - window.start
    may_answer = window.is_marked.copy()
    may_answer[place : place + length] = True
    if not may_answer.any():
        nothing = np.zeros(0, dtype=np.float32)
        return nothing, nothing, 0.0
    spread = np.zeros((2, len(may_answer)), dtype=np.float32)
    spread[:, may_answer] = softmax(window.outputs[may_answer].T)
    starts, ends = spread[:, place : place + length]
    return starts, ends, float(spread[0, 0] * spread[1, 0])


def _best_spans(
    starts: FloatArray, ends: FloatArray, parameters: AnswerParameters
) -> Iterator[tuple[int, int, float]]:
    """Yield the first token, the last token and the score of the best spans, best first."""
    if not len(starts):
        return
    most = parameters.top_k
    if parameters.align_to_words:
        most = _SPANS_PER_ANSWER * most + _MORE_SPANS
    width = min(parameters.max_answer_tokens, len(ends))
    lasts = np.lib.stride_tricks.sliding_window_view(np.pad(ends, (0, width - 1)), width)
    # The best spans begin with the tokens of the best span of their own. Other tokens are left out,
    # because long rows have millions of spans.
    highest = starts * lasts.max(axis=1)
    firsts = np.sort(np.argsort(-highest, kind="stable")[:most])
    scores = (starts[firsts, None] * lasts[firsts]).ravel()
    best = np.argpartition(-scores, most)[:most] if len(scores) > most else np.arange(len(scores))
    for place in best[np.lexsort((best, -scores[best]))].tolist():
        number, length = divmod(place, width)
        first, score = int(firsts[number]), float(scores[place])
        if score > 0.0:
            yield first, first + length, score


def _place(
    tokens: PlacedTokens, window: QuestionWindow, first: int, last: int, *, by_words: bool
) -> tuple[int, int]:
    """Return the characters of a span.

    With `by_words`, the span begins and ends with whole words, as far as the window has them.
    """
    words = tokens.words[window.start : window.end]
    if by_words and words[first] >= 0 and words[last] >= 0:
        first = int(np.searchsorted(words, words[first]))
        last = int(np.searchsorted(words, words[last], side="right")) - 1
    places = tokens.places[window.start : window.end]
    return int(places[first, 0]), int(places[last, 1])
