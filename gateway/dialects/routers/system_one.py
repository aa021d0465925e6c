"""Implements the System One API, by which other products ask a classifier for a choice.

LiteLLM's auto router (litellm 1.106) posts the text and the names of its tiers, and gets a tier.
See `litellm.router_strategy.complexity_router`. A router answers with its target.
"""

from typing import Any, Literal

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.base import input_tokens
from sluicegate.gateway.dialects.guards.route import GROWTH
from sluicegate.gateway.dialects.routers.route import RoutedTexts, router_of
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.guards import RouterConfig
from sluicegate.wire.protocol import Task

# The lines with which LiteLLM's messages to a classifier may begin. The last text of the user is
# behind the first one of them.
_LITELLM_TEXT = "\nClassify this message:\n"
_LITELLM_BEGINNINGS = (
    _LITELLM_TEXT,
    "\nCaller system prompt, quoted as task context:\n",
    "\nRecent conversation (context only, do not classify these):\n",
    "\nConversation so far: ",
)


class ChoiceQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question for one of several options."""

    type: Literal["choice"]
    """The only type of question that a router answers."""
    criteria: dict[str, Any]
    """The options, among them every target of the router. Their descriptions have no effect."""


class SystemOneBody(msgspec.Struct, frozen=True, kw_only=True):
    """Choose an option for a text.

    Other fields, such as `model`, are ignored.
    """

    state: str | list[Any] | dict[str, Any]
    """The text, or a value that the router reads as JSON."""
    questions: dict[str, ChoiceQuestion]
    """One question, under any name."""


class ChoiceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The option that the router chose."""

    type: Literal["choice"] = "choice"
    """The type of the question."""
    choice: str
    """The target."""
    probabilities: dict[str, float]
    """1 for the target, and 0 for the other options."""
    confidence: float
    """The score of the finding that decided; 0 if no rule decided, or in shadow mode."""


class SystemOneUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens that the models read."""

    input_tokens: int
    """The tokens of the text."""
    output_tokens: int = 0
    """Always 0, because a router writes no text."""


class SystemOneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to the question."""

    model: str
    """The model that ran the router's detectors."""
    answers: dict[str, ChoiceAnswer]
    """The answer, under the name of the question."""
    usage: SystemOneUsage
    """The tokens that the models read."""


class _Asked(RoutedTexts, frozen=True, kw_only=True):
    question: str
    options: list[str]


class SystemOneRoute(InferenceRoute):
    """Serves the path of the System One API below the path of a router."""

    path = "/route/{name}/v1/systemone"
    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True
    _decode = BodyDecoder(SystemOneBody)

    @override
    def decode(self, source: BodySource) -> _Asked:
        name, guard, router = router_of(source)
        body = self._decode(source.raw)
        if len(body.questions) != 1:
            raise InvalidRequest(
                "`questions` must have exactly one question: a router has one answer."
            )
        ((question, asked),) = body.questions.items()
        _check_options(name, router, asked)
        text, options = _text(body.state), list(asked.criteria)
        return _Asked(name, guard, [text], router=router, question=question, options=options)

    @override
    def encode(self, body: _Asked, answer: Answer, usage: Usage, request_id: RequestId) -> Rendered:
        results = body.results(answer)
        (result,) = results
        chosen = ChoiceAnswer(
            choice=result.target,
            probabilities={one: float(one == result.target) for one in body.options},
            confidence=result.decided_by.score if result.decided_by and not result.chosen else 0.0,
        )
        found = SystemOneAnswer(
            model=answer.model.info.name,
            answers={body.question: chosen},
            usage=SystemOneUsage(input_tokens=input_tokens(answer)),
        )
        return body.routed(found, results)


def _check_options(name: str, router: RouterConfig, asked: ChoiceQuestion) -> None:
    """Check that a question has every target of the router, whichever is chosen for this text.

    Raises:
        InvalidRequest: a target is missing.
    """
    targets = {
        router.default,
        router.on_error,
        router.shadow,
        *(one.target for one in router.rules),
    }
    missing = sorted(targets - {""} - asked.criteria.keys())
    if missing:
        raise InvalidRequest(
            f"`criteria` lacks `{missing[0][:80]}`, a target of the router `{name}`; "
            "name options and targets alike."
        )


def _text(state: str | list[Any] | dict[str, Any]) -> str:
    if not isinstance(state, str):
        return msgspec.json.encode(state).decode()
    if state.startswith(_LITELLM_BEGINNINGS):
        # If a text has the line, too, the router reads more than the last text, never less.
        return state.partition(_LITELLM_TEXT)[2] or state
    return state
