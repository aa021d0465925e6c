"""Serves the same bytes to every request, as a baseline: uvicorn with a minimal application.

Start it by `python -m loadtests.bare_server PORT LENGTH STATUS DELAY`. It sends `LENGTH` bytes with
the status `STATUS`, `DELAY` seconds after each request.
"""

import asyncio
import sys
from typing import Any

import uvicorn

if __name__ == "__main__":
    port, length, status, delay = (float(each) for each in sys.argv[1:])
    body = b"x" * int(length)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % length)]

    async def _app(_scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if delay:
            await asyncio.sleep(delay)
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    uvicorn.run(
        _app,
        port=int(port),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
