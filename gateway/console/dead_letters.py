"""Shows dead letters (usage events that the ledger cannot store). Replays or discards them."""

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from sluicegate.gateway.console.access import AnyRequest, Context
from sluicegate.gateway.console.frame import Frame
from sluicegate.gateway.operations.context import OperationContext
from sluicegate.gateway.operations.dead_letters import (
    discard_dead_letter,
    get_dead_letter,
    list_dead_letters,
    replay_dead_letter,
)

PER_PAGE = 50


class DeadLettersController(Controller):
    """Serves the page of dead letters and its buttons."""

    path = "/dead-letters"
    include_in_schema = False

    @get("/", opt={"role": list_dead_letters.role})
    async def page(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        context: Context,
        before: FromQuery[int | None] = None,
    ) -> Response[str]:
        """Return the page.

        It shows the newest dead letters, or those with numbers below `before`.
        """
        shown = await _shown(context, before=before)
        return frame.render(request, "dead_letters.html", shown)

    @get("/{number:int}", opt={"role": get_dead_letter.role})
    async def content(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Return the content of a dead letter."""
        letter = await get_dead_letter(context, number)
        return frame.render(request, "dead_letters/_content.html", {"letter": letter})

    @post("/{number:int}/replay", status_code=200, opt={"role": replay_dead_letter.role})
    async def replay(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Count the events of a dead letter as usage, and return the other dead letters."""
        made = await replay_dead_letter(context, number)
        done = f"Dead letter {number} is counted: {made.counted} requests."
        shown = await _shown(context) | {"done": done}
        return frame.render(request, "dead_letters/_list.html", shown)

    @post("/{number:int}/discard", status_code=200, opt={"role": discard_dead_letter.role})
    async def discard(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        context: Context,
    ) -> Response[str]:
        """Remove a dead letter without counting its events, and return the other dead letters."""
        await discard_dead_letter(context, number)
        shown = await _shown(context) | {"done": f"Dead letter {number} is discarded."}
        return frame.render(request, "dead_letters/_list.html", shown)


async def _shown(context: OperationContext, *, before: int | None = None) -> dict[str, object]:
    page = await list_dead_letters(context, limit=PER_PAGE + 1, before=before)
    entries = page.entries[:PER_PAGE]
    older = entries[-1].number if len(page.entries) > PER_PAGE else None
    return {"entries": entries, "count_of_all": page.count, "older": older, "done": ""}
