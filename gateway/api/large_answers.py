"""Encodes and compresses large answers in a thread, within the budget of unsent answers."""

import asyncio
from typing import Final

from sluicegate.gateway.api.answers import count_usage, first_failure
from sluicegate.gateway.api.content_coding import compressed
from sluicegate.gateway.api.http import HttpReply
from sluicegate.gateway.api.request_state import RequestState
from sluicegate.gateway.http.unsent_answers import LARGE_BYTES, UnsentAnswers
from sluicegate.gateway.types import Answer

_ITEM_BYTES: Final = 128
"""Bytes that cost as much to encode as an item does besides its result."""


def estimated_bytes(state: RequestState, answer: Answer) -> int:
    """Return about how long an answer will be: its results, and what it may repeat of the body."""
    outcomes = answer.outcomes
    parsed = state.parsed
    size = _ITEM_BYTES * len(outcomes) + (0 if parsed is None else parsed.length)
    for outcome in outcomes:
        size += len(outcome.result)
    return size


class LargeAnswers:
    """Encodes large answers in a thread, one at a time, since the thread shares the GIL."""

    def __init__(self, unsent: UnsentAnswers) -> None:
        self._unsent = unsent
        self._lock = asyncio.Lock()

    async def encode(self, state: RequestState, answer: Answer) -> None:
        """Encode a large answer that is no failure; `release` has to follow in any case.

        Raises:
            Overloaded: there is no room for it until the deadline.
            DeadlineExceeded: the thread encodes other answers until the deadline.
        """
        size = estimated_bytes(state, answer)
        caller, parsed = state.caller_and_body()
        if size <= LARGE_BYTES:
            return
        continues = parsed.request.continue_on_error
        answers_failures = state.route.answers_failures
        failure = first_failure(
            answer, continue_on_error=continues, answers_failures=answers_failures
        )
        if failure is not None:
            return
        # Room for the results and for the encoded answer.
        state.held_bytes = await self._unsent.hold(caller.key, 2 * size, state.deadline)
        usage = count_usage(answer.outcomes)
        async with state.time_for("the encoding of the answer"), self._lock:
            state.rendered = await asyncio.to_thread(
                state.route.encode, parsed.body, answer, usage, state.id
            )

    async def finish(self, state: RequestState, reply: HttpReply) -> HttpReply:
        """Return an answer as it will be sent, compressed if the caller asks for that.

        From now on a large answer holds only its own bytes.
        """
        reply = await compressed(reply, state.coding)
        if state.held_bytes:
            state.parsed = state.prepared = state.outcomes = state.rendered = None
            self.release(state, len(reply.body))
        return reply

    def release(self, state: RequestState, kept: int = 0) -> None:
        """Release the bytes of an answer that was sent, or will not be, but for `kept` of them."""
        size = state.held_bytes - kept
        if size > 0 and state.principal is not None:
            state.held_bytes -= size
            self._unsent.release(state.principal.key, size)
