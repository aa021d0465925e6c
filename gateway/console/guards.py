"""Shows the guards of the document, their verdicts, and sampled decisions."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency

from sluicegate.gateway.config.load import load_sources, without_defaults
from sluicegate.gateway.config.sources import DocumentSource
from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.form_fields import fields_of
from sluicegate.gateway.console.forms import one
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.guard_history import GuardActivity
from sluicegate.gateway.console.history import History
from sluicegate.gateway.errors import InvalidRequest
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.guards import (
    MOST_TEXTS,
    GuardTrial,
    sampled_decisions,
    try_guard,
)
from sluicegate.gateway.telemetry.guard_decisions import GuardDecision
from sluicegate.wire.guards import (
    VERDICTS,
    AnyDetector,
    ClassifierDetector,
    EntityDetector,
    ExampleDetector,
    FormatDetector,
    GuardConfig,
    LengthDetector,
    PatternDetector,
    WordDetector,
    thresholds_of,
)

_MOST_DECISIONS: Final = 6


class DetectorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A detector, and how much it found in the last half hour."""

    name: str
    kind: str
    action: str
    model: str
    wanted: str
    """What it looks for."""
    found: int


class GuardView(msgspec.Struct, frozen=True, kw_only=True):
    """A guard, and what it did in the last half hour."""

    name: str
    config: GuardConfig
    detectors: list[DetectorRow]
    activity: GuardActivity
    decisions: list[GuardDecision] | None
    """The newest errors, then the newest decisions of each verdict, the strongest first. `None` if
    the cache Redis cannot be reached."""


class GuardsController(Controller):
    """Serves the page of guards."""

    path = "/guards"
    include_in_schema = False

    @get("/")
    async def page(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        history: NamedDependency[History],
        context: Context,
        active: NamedDependency[ActiveDocumentReader],
    ) -> Response[str]:
        """Return the page, or only its changing part if htmx sent the request."""
        document = await active.document()
        is_fragment = request.headers.get("hx-request") == "true"
        guards = document.guards
        sampled = await asyncio.gather(*[sampled_decisions(context, name) for name in guards])
        shown = {
            "guards": [
                _view(name, guards[name], history, decisions)
                for name, decisions in zip(guards, sampled, strict=True)
            ],
            "most": _MOST_DECISIONS,
        }
        if is_fragment:
            return frame.render(request, "guards/_guards.html", shown)
        return frame.render(request, "guards.html", shown | {"text": _text(document.guards)})

    @post("/try", status_code=200, opt={"role": try_guard.role})
    async def attempt(
        self, request: AnyRequest, frame: NamedDependency[Frame], context: Context
    ) -> Response[str]:
        """Return what the guard of the document and the guard in the form decide about texts."""
        fields = await fields_of(request)
        name, text = one(fields, "guard"), one(fields, "proposed")
        proposed = None
        if text:
            source = DocumentSource(name="proposed.yaml", text=text)
            proposed = (await asyncio.to_thread(load_sources, (source,))).guards.get(name)
            if proposed is None:
                raise InvalidRequest(f"The proposed text has no guard `{name[:80]}`.")
        texts = [line for each in one(fields, "texts").splitlines() if (line := each.strip())]
        if not 0 < len(texts) <= MOST_TEXTS:
            raise InvalidRequest(f"Enter 1 to {MOST_TEXTS} texts, one in each line.")
        compared = await try_guard(context, name, GuardTrial(texts=texts, proposed=proposed))
        return frame.render(request, "guards/_compared.html", {"compared": compared})


def _text(guards: Mapping[str, GuardConfig]) -> str:
    """Return the guards as the document declares them, without defaults."""
    return msgspec.yaml.encode({"guards": without_defaults(guards)}).decode() if guards else ""


def _view(
    name: str, guard: GuardConfig, history: History, decisions: list[GuardDecision] | None
) -> GuardView:
    activity = history.guards.of(name)
    return GuardView(
        name=name,
        config=guard,
        detectors=[_row(each, activity.found) for each in guard.detectors],
        activity=activity,
        decisions=decisions and _shown(decisions),
    )


def _shown(decisions: Sequence[GuardDecision]) -> list[GuardDecision]:
    errors = [one for one in decisions if one.error]
    judged = [
        [one for one in decisions if one.verdict == verdict and not one.error]
        for verdict in reversed(VERDICTS)
    ]
    return [one for kind in (errors, *judged) for one in kind[:_MOST_DECISIONS]]


def _row(detector: AnyDetector, found: Counter[str]) -> DetectorRow:
    return DetectorRow(
        name=detector.name,
        kind=str(type(detector).__struct_config__.tag),
        action=detector.action,
        model=getattr(detector, "model", ""),
        wanted=_wanted(detector),
        found=found[detector.name],
    )


def _wanted(detector: AnyDetector) -> str:
    match detector:
        case ClassifierDetector(expected=expected) if expected:
            return f"none of {_scores(expected)}"
        case ClassifierDetector() | EntityDetector() | ExampleDetector():
            return _scores(thresholds_of(detector))
        case FormatDetector():
            return ", ".join(detector.formats)
        case WordDetector():
            return f"{len(detector.words)} words and phrases"
        case LengthDetector():
            return f"more than {detector.max_characters} characters"
        case PatternDetector():
            return detector.label


def _scores(labels: dict[str, float]) -> str:
    return ", ".join(f"{label} from {score:g}" for label, score in labels.items())
