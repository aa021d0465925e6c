"""Runs a function over the tokens of a text: few tokens on the event loop, others in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

# Work on this many tokens takes about 0.5 ms, and a request can have many such texts.
_FEW_TOKENS: Final = 128
# One thread for the process, because more threads would keep the interpreter lock from the loop.
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="token-work")


async def run_token_work(
    tokens: int, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Return the result of `work`, whose duration grows with the number of `tokens`."""
    if tokens <= _FEW_TOKENS:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *arguments))
