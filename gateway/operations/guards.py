"""Shows sampled decisions of guards, and tries a guard on texts before it is published."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from sluicegate.gateway.api.openapi_parts import Content
from sluicegate.gateway.config.checks import findings
from sluicegate.gateway.errors import (
    ConfigurationError,
    DependencyUnavailable,
    InvalidRequest,
    NotFound,
    UpstreamUnavailable,
)
from sluicegate.gateway.operations.backend_calls import BackendStates
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.declaration import Family
from sluicegate.gateway.operations.guard_recounts import kept_decisions
from sluicegate.gateway.operations.operators import Role
from sluicegate.gateway.telemetry.guard_decisions import GuardDecision
from sluicegate.wire.guards import GuardConfig, Verdict
from sluicegate.wire.protocol import Failed, GuardParameters, Task

MOST_TEXTS: Final = 100
_MOST_ERRORS: Final = 3
_MOST_LISTED: Final = 1000
_encode = msgspec.msgpack.Encoder(order="sorted").encode
FAMILY = Family(
    "operations",
    about={"guard": {"description": "A guard of the document.", "example": "chat"}},
)


class GuardTrial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Texts to judge, and a guard to compare with the guard of the document."""

    texts: Annotated[list[str], msgspec.Meta(min_length=1, max_length=MOST_TEXTS)]
    """The texts. They are not stored."""
    proposed: GuardConfig | None = None
    """A guard as the document declares it. Without it, only the document's guard is tried."""


class GuardOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The number of texts by verdict, and of texts in which each detector found something."""

    verdicts: dict[Verdict, int]
    detectors: dict[str, int]
    """The number of texts with findings, by detector."""
    errors: list[str] = []
    """Why texts could not be looked at: at most three different reasons. Their verdict is
    `on_error`, unless a finding blocks them."""


class GuardComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the document's guard and the proposed guard decide about the same texts."""

    present: GuardOutcome | None
    """`null` if the document has no such guard."""
    proposed: GuardOutcome | None
    """`null` if no guard was proposed."""


@FAMILY.operation(
    "GET /admin/guards/{guard}/decisions",
    "Sampled decisions of a guard",
    role=Role.VIEWER,
    errors=(DependencyUnavailable, NotFound),
    answers={200: (Content(type=list[GuardDecision]),)},
)
async def list_decisions(context: OperationContext, guard: str) -> list[GuardDecision]:
    """Return at most 1,000 sampled decisions of a guard, the newest first.

    Each worker keeps up to 30 decisions of each verdict and of errors, and replaces at most one of
    them each second. `decisions` of the configuration document names the tenants whose texts are
    shown, and only to operators with the role `operator`.
    """
    document = await context.active.document()
    if guard not in document.guards:
        raise NotFound(f"The document has no guard `{guard[:80]}`.")
    found = await sampled_decisions(context, guard)
    if found is None:
        raise DependencyUnavailable(
            "the cache Redis, which has sampled decisions, cannot be reached; try again in a moment"
        )
    return found[:_MOST_LISTED]


async def sampled_decisions(context: OperationContext, guard: str) -> list[GuardDecision] | None:
    """Return the decisions of a guard, the newest first, with texts that the operator may see.

    Return `None` if the cache Redis cannot be reached.
    """
    kept = await kept_decisions(context.control, context.cache_redis, guard)
    if kept is None:
        return None
    document = await context.active.document()
    shown = document.decisions.texts if context.operator.may(Role.OPERATOR) else ()
    found = [
        one if one.tenant in shown else msgspec.structs.replace(one, text="")
        for each in kept
        for one in each.decisions
    ]
    return sorted(found, key=lambda one: -one.time)


class _Found(msgspec.Struct, frozen=True):
    detector: str


class _Error(msgspec.Struct, frozen=True):
    detail: str


class _Judged(msgspec.Struct, frozen=True):
    verdict: Verdict
    findings: list[_Found]
    error: _Error | None = None


_read = msgspec.json.Decoder(_Judged).decode


@FAMILY.operation(
    "POST /admin/guards/{guard}/try",
    "Try a guard on texts",
    role=Role.OPERATOR,
    errors=(ConfigurationError, InvalidRequest, NotFound, UpstreamUnavailable),
    example={
        "texts": ["Write to ada@example.com", "a gorgeous, witty movie"],
        "proposed": {
            "model": "chat-detectors",
            "detectors": [{"kind": "formats", "name": "contacts", "formats": ["email"]}],
        },
    },
    answers={200: (Content(type=GuardComparison),)},
)
async def try_guard(context: OperationContext, guard: str, trial: GuardTrial) -> GuardComparison:
    """Look at texts with the document's guard and a proposed guard, and count the verdicts.

    Nothing is published, stored or billed. A backend that serves the guard's model looks at the
    texts.
    """
    document = await context.active.document()
    present, proposed = document.guards.get(guard), trial.proposed
    if present is None and proposed is None:
        raise NotFound(f"The document has no guard `{guard[:80]}`. Propose one.")
    if proposed is not None:
        changed = msgspec.structs.replace(document, guards={guard: proposed})
        for path, detail in findings(changed):
            if path[0] == "guards":
                named = ".".join(map(str, path[2:])) or f"the name `{guard[:80]}` in the path"
                raise InvalidRequest(f"The proposed guard is invalid: {named}: {detail}")
    states = await context.backends.states()
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_outcome(context, states, each, trial.texts))
                for each in (present, proposed)
            ]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return GuardComparison(present=tasks[0].result(), proposed=tasks[1].result())


async def _outcome(
    context: OperationContext,
    states: BackendStates,
    guard: GuardConfig | None,
    texts: Sequence[str],
) -> GuardOutcome | None:
    if guard is None:
        return None
    parameters = GuardParameters(
        detectors=guard.detectors, allow=guard.allow, overlap=guard.overlap
    )
    answers = await context.backends.run(
        states, guard.model, Task.GUARD, _encode(parameters), [_encode(text) for text in texts]
    )
    verdicts: Counter[Verdict] = Counter()
    detectors: Counter[str] = Counter()
    errors: dict[str, None] = {}
    for each in answers:
        if isinstance(each, Failed):
            verdicts[guard.on_error] += 1
            errors[each.detail] = None
        else:
            judged = _read(each.result)
            verdicts[judged.verdict] += 1
            detectors.update({one.detector for one in judged.findings})
            if judged.error is not None:
                errors[judged.error.detail] = None
    return GuardOutcome(
        verdicts=dict(verdicts), detectors=dict(detectors), errors=[*errors][:_MOST_ERRORS]
    )
