"""Serves a static model with its library, behind aiohttp.

`python -m loadtests.libraries.served FOLDER PORT`, where the libraries are installed.
"""

import sys
from typing import Any

from aiohttp import web
from model2vec import StaticModel


def main() -> None:
    """Answer `{"input": [...]}` with a vector of each text, until the process is ended."""
    folder, port = sys.argv[1:]
    model: Any = StaticModel.from_pretrained(folder)

    async def embed(request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        return web.json_response({"embeddings": model.encode(texts).tolist()})

    async def ready(_: web.Request) -> web.Response:
        return web.Response()

    application = web.Application(client_max_size=1 << 26)
    application.add_routes([web.post("/", embed), web.get("/", ready)])
    web.run_app(application, host="127.0.0.1", port=int(port), print=None)


if __name__ == "__main__":
    main()
