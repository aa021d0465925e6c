"""Encodes answers in a thread that would hold the event loop: many vectors in other forms."""

import asyncio

from gateway.api.answers import count_usage, first_failure
from gateway.api.request_state import RequestState
from gateway.types import Answer


class SlowAnswers:
    """Answers that are encoded in a thread, one at a time: the event loop shares the GIL."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def encode(self, state: RequestState, answer: Answer) -> None:
        """Encode an answer that is slow to encode, no other and no failure."""
        _, parsed = state.caller_and_body()
        if not parsed.is_slow_to_encode:
            return
        continues = parsed.request.continue_on_error
        if first_failure(answer, continue_on_error=continues) is not None:
            return
        usage = count_usage(answer.outcomes)
        async with self._lock:
            state.rendered = await asyncio.to_thread(
                parsed.route.encode, parsed.body, answer, usage, state.id
            )
