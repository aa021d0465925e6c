"""Runs work on the event loop if the work is small, otherwise in a thread."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")
_Result = TypeVar("_Result")

# Work on so many tokens takes about 0.5 ms, and a request can have many such texts.
_FEW: Final = 128
# One thread for the process, because more threads would keep the interpreter lock from the loop.
_THREAD: Final = ThreadPoolExecutor(1, thread_name_prefix="token-work")


async def run_token_work(
    size: int, work: Callable[[*_Arguments], _Result], *arguments: *_Arguments
) -> _Result:
    """Return `work(*arguments)`; `size` is the number of tokens or bytes to process."""
    if size <= _FEW:
        return work(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(work, *arguments))
