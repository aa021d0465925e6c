"""Shows dead letters (usage events that the ledger cannot store). Replays or discards them."""

import asyncio

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery

from gateway.admin.dead_letters import DeadLetterReplay
from gateway.console.access import AnyRequest
from gateway.console.frame import Frame
from gateway.ledger.ledger import Ledger
from gateway.operations.operators import Operator, Role

PER_PAGE = 50


class DeadLettersController(Controller):
    """Serves the page of dead letters and its buttons."""

    path = "/dead-letters"
    include_in_schema = False

    @get("/", opt={"role": Role.VIEWER})
    async def page(
        self,
        request: AnyRequest,
        frame: NamedDependency[Frame],
        dead_letters: NamedDependency[DeadLetterReplay],
        before: FromQuery[int | None] = None,
    ) -> Response[str]:
        """Return the page.

        It shows the newest dead letters, or those with numbers below `before`.
        """
        context = await _context(dead_letters, before=before)
        return frame.render(request, "dead_letters.html", context)

    @get("/{number:int}", opt={"role": Role.VIEWER})
    async def content(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        dead_letters: NamedDependency[DeadLetterReplay],
    ) -> Response[str]:
        """Return the content of a dead letter."""
        letter = await asyncio.to_thread(dead_letters.show, number)
        return frame.render(request, "dead_letters/_content.html", {"letter": letter})

    @post("/{number:int}/replay", status_code=200, opt={"role": Role.BILLING})
    async def replay(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        dead_letters: NamedDependency[DeadLetterReplay],
        operator: NamedDependency[Operator],
    ) -> Response[str]:
        """Count the events of a dead letter as usage, and return the other dead letters."""
        made = await asyncio.to_thread(dead_letters.replay, number, actor=operator.name)
        done = f"Dead letter {number} is counted: {made.counted} requests."
        context = await _context(dead_letters) | {"done": done}
        return frame.render(request, "dead_letters/_list.html", context)

    @post("/{number:int}/discard", status_code=200, opt={"role": Role.BILLING})
    async def discard(
        self,
        request: AnyRequest,
        number: FromPath[int],
        frame: NamedDependency[Frame],
        ledger: NamedDependency[Ledger],
        dead_letters: NamedDependency[DeadLetterReplay],
        operator: NamedDependency[Operator],
    ) -> Response[str]:
        """Remove a dead letter without counting its events, and return the other dead letters."""
        await asyncio.to_thread(ledger.dead_letters.discard, number, actor=operator.name)
        context = await _context(dead_letters) | {"done": f"Dead letter {number} is discarded."}
        return frame.render(request, "dead_letters/_list.html", context)


async def _context(
    dead_letters: DeadLetterReplay, *, before: int | None = None
) -> dict[str, object]:
    page = await asyncio.to_thread(dead_letters.page, limit=PER_PAGE + 1, before=before)
    entries = page.entries[:PER_PAGE]
    older = entries[-1].number if len(page.entries) > PER_PAGE else None
    return {"entries": entries, "count_of_all": page.count, "older": older, "done": ""}
