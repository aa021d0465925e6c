"""Serves the same bytes to every request: uvicorn with a minimal application, as a baseline.

`python -m loadtests.bare_server PORT LENGTH [STATUS [DELAY]]`; it answers after `DELAY` seconds.
"""

import asyncio
import sys
from typing import Any

import uvicorn


def make_app(length: int, status: int = 200, delay: float = 0.0) -> Any:
    """Return an ASGI application that answers every request with `length` bytes."""
    body = b"x" * length
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if delay:
            await asyncio.sleep(delay)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


if __name__ == "__main__":
    uvicorn.run(
        make_app(int(sys.argv[2]), *map(int, sys.argv[3:4]), *map(float, sys.argv[4:])),
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
