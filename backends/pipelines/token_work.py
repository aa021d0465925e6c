"""Runs work on the tokens of a text: on the event loop if it is short, else in a thread."""

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

# Work on this many tokens takes about 0.5 ms, and a request can have many such texts.
_FEW_TOKENS = 128


async def run_token_work(
    tokens: int, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Return `work(*arguments)`, whose duration grows with the number of `tokens`."""
    if tokens <= _FEW_TOKENS:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)
