"""Defines `POST /v1/route/{name}`, which chooses a target for each text with a router."""

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

import msgspec
from typing_extensions import override

from sluicegate.gateway.api.inference_route import JSON, BodySource, InferenceRoute, Rendered
from sluicegate.gateway.dialects.guards.route import (
    GROWTH,
    Finding,
    GuardedTexts,
    GuardFailure,
    GuardResult,
    flagging,
)
from sluicegate.gateway.errors import NotFound
from sluicegate.gateway.http.body_decoding import BodyDecoder
from sluicegate.gateway.telemetry.guard_verdicts import ROUTED_TEXTS, UNREAD_TEXTS, GuardVerdicts
from sluicegate.gateway.types import Answer, RequestId, Usage
from sluicegate.wire.guards import GuardConfig, RouterConfig
from sluicegate.wire.protocol import Task


class RouteBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choose a target for each text."""

    input: str | list[str]
    """A text, or a list of texts."""


class RouteResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The target for a text, and why."""

    target: str
    """The target."""
    chosen: str = ""
    """If the router is in shadow mode: the target that its rules chose."""
    decided_by: Finding | None = None
    """The finding that decided. Without it, no rule decided."""
    findings: list[Finding]
    """What detectors found, in the order of the text."""
    error: GuardFailure | None = None
    """If the text could not be looked at completely, why. The router's `on_error` or `default` is
    then the target."""


class RouteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The targets for all texts."""

    router: str
    """The name of the router."""
    model: str
    """The model that ran the detectors."""
    revision: str
    """Its revision."""
    results: list[RouteResult]
    """A target for each text."""
    usage: Usage
    """What the request used."""


class RoutedTexts(GuardedTexts, frozen=True, kw_only=True):
    """Holds texts, a router, and the guard that finds what the router's rules ask for."""

    router: RouterConfig
    with_scores: ClassVar[bool] = False

    def results(self, answer: Answer) -> list[RouteResult]:
        """Return the target for each text."""
        results, _ = self.judge(answer)
        return [_result(self.router, one) for one in results]

    def routed(self, found: msgspec.Struct, results: Sequence[RouteResult]) -> Rendered:
        """Return `found` as the answer, with the targets that metrics count."""
        counted = Counter([ROUTED_TEXTS(self.name, one.chosen or one.target) for one in results])
        if failed := sum(one.error is not None for one in results):
            counted[UNREAD_TEXTS(self.name)] = failed
        return Rendered(
            JSON, msgspec.json.encode(found), GuardVerdicts(counts=tuple(counted.items()))
        )


def _result(router: RouterConfig, found: GuardResult) -> RouteResult:
    chosen, decided_by = router.on_error or router.default, None
    if found.error is None:
        chosen, decided_by = _decide(router, found.findings)
    return RouteResult(
        target=router.shadow or chosen,
        chosen=chosen if router.shadow else "",
        decided_by=decided_by,
        findings=found.findings,
        error=found.error,
    )


def _decide(router: RouterConfig, findings: list[Finding]) -> tuple[str, Finding | None]:
    """Return the target of the first rule with a finding, and its finding with the best score."""
    best: dict[tuple[str, str], Finding] = {}
    for one in findings:
        for key in ((one.detector, ""), (one.detector, one.label)):
            if key not in best or one.score > best[key].score:
                best[key] = one
    for rule in router.rules:
        decisive = best.get((rule.detector, rule.label))
        if decisive is not None:
            return rule.target, decisive
    return router.default, None


def router_of(source: BodySource) -> tuple[str, GuardConfig, RouterConfig]:
    """Return the name in the path, and the router of this name with its guard, which only flags.

    Raises:
        NotFound: the document has no such router.
    """
    name = source.parameters["name"]
    found = source.document.routers.get(name)
    if found is None:
        raise NotFound(
            f"There is no router `{name[:80]}`; the operator's configuration names them."
        )
    guard = GuardConfig(model=found.model, detectors=flagging(found.detectors))
    return name, guard, found


class RouteRoute(InferenceRoute):
    """Serves `POST /v1/route/{name}`."""

    path = "/v1/route/{name}"
    task = Task.GUARD
    answer_growth = GROWTH
    answers_failures = True
    _decode = BodyDecoder(RouteBody)

    @override
    def decode(self, source: BodySource) -> RoutedTexts:
        name, guard, router = router_of(source)
        given = self._decode(source.raw).input
        texts = given if isinstance(given, list) else [given]
        return RoutedTexts(name, guard, texts, router=router)

    @override
    def encode(
        self, body: RoutedTexts, answer: Answer, usage: Usage, request_id: RequestId
    ) -> Rendered:
        info, results = answer.model.info, body.results(answer)
        found = RouteAnswer(
            router=body.name,
            model=info.name,
            revision=info.revision,
            results=results,
            usage=usage,
        )
        return body.routed(found, results)
