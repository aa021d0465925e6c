"""Serves OpenAI's embeddings API without a model: every embedding is the same.

`python -m loadtests.peers.litellm.model_server PORT`
"""

import sys
from typing import Any

import msgspec
import uvicorn

_EMBEDDING = [0.125] * 16


async def app(_scope: Any, receive: Any, send: Any) -> None:
    """Answer any request with one short embedding."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = msgspec.json.encode(
        {
            "object": "list",
            "model": "stub",
            "data": [{"object": "embedding", "index": 0, "embedding": _EMBEDDING}],
            "usage": {"prompt_tokens": 5, "total_tokens": 5},
        }
    )
    length = b"%d" % len(answer)
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), lifespan="off", access_log=False, log_level="warning")
