"""Shows the guards of the document, their verdicts, and recent decisions without texts."""

import asyncio
from collections import Counter
from collections.abc import Mapping
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
from sluicegate.gateway.operations.fleet_view import reported
from sluicegate.gateway.operations.guards import MOST_TEXTS, GuardTrial, try_guard
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.telemetry.guard_verdicts import GuardDecision
from sluicegate.wire.guards import (
    AnyDetector,
    ClassifierDetector,
    EntityDetector,
    ExampleDetector,
    FormatDetector,
    GuardConfig,
    LengthDetector,
    PatternDetector,
    WordDetector,
)

_MOST_DECISIONS: Final = 20


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
        control: NamedDependency[Control],
        active: NamedDependency[ActiveDocumentReader],
    ) -> Response[str]:
        """Return the page, or only its changing part if htmx sent the request."""
        document = await active.document()
        is_fragment = request.headers.get("hx-request") == "true"
        context = {
            "guards": [_view(name, guard, history) for name, guard in document.guards.items()],
            "decisions": await _decisions(control),
        }
        if is_fragment:
            return frame.render(request, "guards/_guards.html", context)
        return frame.render(request, "guards.html", context | {"text": _text(document.guards)})

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


async def _decisions(control: Control) -> list[GuardDecision]:
    """Return the newest decisions that workers report, newest first."""
    reports = (await reported(control, "decisions")).values()
    found = [one for each in reports for one in msgspec.convert(each or [], list[GuardDecision])]
    return sorted(found, key=lambda one: one.time, reverse=True)[:_MOST_DECISIONS]


def _view(name: str, guard: GuardConfig, history: History) -> GuardView:
    activity = history.guards.of(name)
    return GuardView(
        name=name,
        config=guard,
        detectors=[_row(each, activity.found) for each in guard.detectors],
        activity=activity,
    )


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
            return _scores(_thresholds(detector))
        case FormatDetector():
            return ", ".join(detector.formats)
        case WordDetector():
            return f"{len(detector.words)} words and phrases"
        case LengthDetector():
            return f"more than {detector.max_characters} characters"
        case PatternDetector():
            return detector.label


def _thresholds(
    detector: ClassifierDetector | EntityDetector | ExampleDetector,
) -> dict[str, float]:
    if isinstance(detector, ExampleDetector):
        return dict.fromkeys(detector.examples, detector.threshold)
    return detector.labels


def _scores(labels: dict[str, float]) -> str:
    return ", ".join(f"{label} from {score:g}" for label, score in labels.items())
