"""Shows models and the results of their revisions. Changes traffic splits and shadow revisions."""

import asyncio
from typing import Final

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, URLEncodedBody

from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.fleet import read_fleet
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.console.history import History
from sluicegate.gateway.console.incidents import Incident, absent_reports
from sluicegate.gateway.console.model_list import ModelRow, list_models
from sluicegate.gateway.errors import InvalidRequest, NotFound
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.active_document import ActiveDocumentReader
from sluicegate.gateway.operations.model_plans import (
    SplitChange,
    end_shadow,
    get_model_arms,
    reset_model,
    roll_back_model,
    shadow_model,
    split_model,
)
from sluicegate.gateway.operations.plan_changes import PlanResult
from sluicegate.gateway.runtime.control import Control
from sluicegate.wire.plans import Revision, Shadow, Weight

_PAGE: Final = 100
_WEIGHT: Final = "weight-"
_MOST_DIGITS: Final = 9


class ModelRows(msgspec.Struct, frozen=True, kw_only=True):
    """All models, sorted by name. `absent` is set if no worker has sent a report."""

    rows: list[ModelRow]
    absent: Incident | None


class ModelReader:
    """Reads the list of models."""

    def __init__(
        self, *, control: Control, active: ActiveDocumentReader, ledger: Ledger, history: History
    ) -> None:
        self._control = control
        self._active = active
        self._ledger = ledger
        self._history = history

    async def all(self) -> ModelRows:
        """Return all models, sorted by name."""
        fleet = await read_fleet(self._control, self._active)
        plans = await asyncio.to_thread(self._ledger.plans.load)
        traffic = self._history.traffic
        rows = list_models(fleet, plans, traffic)
        return ModelRows(rows=rows, absent=absent_reports(fleet, traffic))

    async def one(self, name: str) -> ModelRow:
        """Return a model.

        Raises:
            NotFound: no backend has the model, or no worker reports.
        """
        models = await self.all()
        for row in models.rows:
            if row.name == name:
                return row
        if models.absent is not None:
            raise NotFound(f"{models.absent.text} The list of models comes from workers' reports.")
        raise NotFound(f"No backend has a model `{name}`.")


async def provide_models(
    control: NamedDependency[Control],
    active: NamedDependency[ActiveDocumentReader],
    ledger: NamedDependency[Ledger],
    history: NamedDependency[History],
) -> ModelReader:
    """Return the reader. Litestar injects it into handlers."""
    return ModelReader(control=control, active=active, ledger=ledger, history=history)


class ShadowForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of the form that sets a shadow."""

    revision: str = ""
    share: str = "100"
    dry_run: bool = False


class StepForm(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a form without inputs, such as the form for a rollback."""

    dry_run: bool = False


class ModelPagesController(Controller):
    """Serves the pages of models and their forms."""

    path = "/models"
    include_in_schema = False

    @get("/")
    async def models(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        models: NamedDependency[ModelReader],
        q: FromQuery[str] = "",
        page: FromQuery[int] = 1,
    ) -> Response[str]:
        """Return the list, or only its table if htmx sent the request."""
        all_models = await models.all()
        found = [row for row in all_models.rows if q.strip().lower() in row.name.lower()]
        pages = max(1, -(-len(found) // _PAGE))
        page = min(max(1, page), pages)
        is_fragment = request.headers.get("hx-request") == "true"
        context = {
            "absent": all_models.absent,
            "models": found[(page - 1) * _PAGE : page * _PAGE],
            "found": len(found),
            "query": q,
            "page": page,
            "page_count": pages,
        }
        return frame.render(
            request, "models/_table.html" if is_fragment else "models.html", context
        )

    @get("/{model:str}")
    async def model(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        models: NamedDependency[ModelReader],
        model: FromPath[str],
    ) -> Response[str]:
        """Return the page of a model. The browser loads the results of the revisions separately."""
        return frame.render(request, "model.html", {"model": await models.one(model)})

    @get("/{model:str}/arms")
    async def revisions(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
        models: NamedDependency[ModelReader],
        model: FromPath[str],
    ) -> Response[str]:
        """Return the results of each revision, and the forms that change the use of revisions."""
        shown = {
            "found": await get_model_arms(context, model),
            "model": await models.one(model),
        }
        return frame.render(request, "models/_revisions.html", shown)

    @post("/{model:str}/split", status_code=200, opt={"role": split_model.role})
    async def split(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
        model: FromPath[str],
    ) -> Response[str]:
        """Divide a model's items among its revisions, by the weights in the form.

        The form has a field for the weight of each revision.
        """
        form = {name: str(value).strip() for name, value in (await request.form()).multi_items()}
        dry_run = form.get("dry_run") == "true"
        split = SplitChange(revisions=weights_of(form))
        done = await split_model(context, model, split, dry_run=dry_run)
        return _notice(request, frame, done, dry_run=dry_run)

    @post("/{model:str}/shadow", status_code=200, opt={"role": shadow_model.role})
    async def shadow(
        self,
        request: AnyRequest,
        data: URLEncodedBody[ShadowForm],
        frame: NamedDependency[Frame],
        context: Context,
        model: FromPath[str],
    ) -> Response[str]:
        """Set the shadow revision, or remove the shadow if the form names no revision."""
        if data.revision.strip():
            done = await shadow_model(context, model, shadow_of(data), dry_run=data.dry_run)
        else:
            done = await end_shadow(context, model, dry_run=data.dry_run)
        return _notice(request, frame, done, dry_run=data.dry_run)

    @post("/{model:str}/rollback", status_code=200, opt={"role": roll_back_model.role})
    async def rollback(
        self,
        request: AnyRequest,
        data: URLEncodedBody[StepForm],
        frame: NamedDependency[Frame],
        context: Context,
        model: FromPath[str],
    ) -> Response[str]:
        """Undo the last change of the model's traffic split."""
        done = await roll_back_model(context, model, dry_run=data.dry_run)
        return _notice(request, frame, done, dry_run=data.dry_run)

    @post("/{model:str}/reset", status_code=200, opt={"role": reset_model.role})
    async def reset(
        self,
        request: AnyRequest,
        data: URLEncodedBody[StepForm],
        frame: NamedDependency[Frame],
        context: Context,
        model: FromPath[str],
    ) -> Response[str]:
        """Remove the operators' plan."""
        done = await reset_model(context, model, dry_run=data.dry_run)
        return _notice(request, frame, done, dry_run=data.dry_run)


def _notice(request: AnyRequest, frame: Frame, done: PlanResult, *, dry_run: bool) -> Response[str]:
    """Return a notice about a change of a plan, or about its check."""
    notice = frame.render(request, "models/_done.html", {"done": done, "dry_run": dry_run})
    if not dry_run:
        notice.set_header("HX-Trigger", "plan-changed")
    return notice


def weights_of(form: dict[str, str]) -> dict[str, int]:
    """Return the weights in a form, by revision. A field that is empty or 0 is skipped.

    Raises:
        InvalidRequest: a revision or a weight is not a number, or no weight is given.
    """
    named = {
        name.removeprefix(_WEIGHT): value
        for name, value in form.items()
        if name.startswith(_WEIGHT)
    }
    if form.get("new_revision"):
        named[form["new_revision"]] = form.get("new_weight", "")
    wanted = {number: weight for number, weight in named.items() if weight not in {"", "0"}}
    if any(len(text) > _MOST_DIGITS for pair in wanted.items() for text in pair):
        raise InvalidRequest(f"Weights and revisions have at most {_MOST_DIGITS} digits.")
    try:
        weights = msgspec.convert(wanted, dict[Revision, Weight], strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(
            f"Weights must be whole numbers above 0, revisions must be numbers of folders: {error}."
        ) from error
    if not weights:
        raise InvalidRequest("Give at least one revision a weight.")
    return weights


def shadow_of(form: ShadowForm) -> Shadow:
    """Return the shadow in a form.

    Raises:
        InvalidRequest: the revision is not a number, or the share is not a percentage.
    """
    try:
        wanted = {"revision": form.revision.strip(), "share": float(form.share)}
        return msgspec.convert(wanted, Shadow)
    except ValueError as error:
        raise InvalidRequest(
            f"A shadow needs a revision's number, and a share above 0 and up to 100 %: {error}."
        ) from error
