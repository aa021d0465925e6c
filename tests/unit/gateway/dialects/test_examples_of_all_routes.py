"""The documented example of each route of a dialect is answered as the OpenAPI document says."""

import msgspec
import pytest

from sluicegate.gateway.api.native_routes import NATIVE_ROUTES
from sluicegate.gateway.config.document import ModelConfig
from tests.support.api import KEY, Api
from tests.support.dialects import GUARDS, ROUTERS, answer_alike, sent, serve_models
from tests.support.documents import conforms, documents
from tests.unit.gateway.dialects.test_nulls_of_all_routes import ROUTES, example

pytestmark = pytest.mark.anyio
_HEADERS = ("Host: 127.0.0.1:8080", f"Authorization: Bearer {KEY}")
_DIALECTS = sorted(ROUTES.keys() - {route.path for route in NATIVE_ROUTES})


def prepare(api: Api) -> None:
    serve_models(api)
    infos = api.scene.models.infos
    infos["sentiment"] = msgspec.structs.replace(infos["sentiment"], labels=["good", "bad"])
    api.configure(
        models={"sentiment": ModelConfig(moderation={"bad": "rude"})},
        guards=GUARDS,
        routers=ROUTERS,
    )


@pytest.mark.parametrize("path", _DIALECTS)
async def test_an_example_is_answered_as_documented(anyio_backend: str, path: str) -> None:
    route, operation = ROUTES[path]
    given = {one["name"]: one["example"] for one in operation.parameters if one["in"] == "path"}
    body = msgspec.json.encode(example(path))
    document = documents()["customers"]
    told = document["paths"][route.template]["post"]["responses"]["200"]["content"]

    request = sent(f"POST {route.template.format(**given)}", _HEADERS, body)
    (answer,), _ = await answer_alike([request], "memory", prepare)

    head, _, written = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), answer
    conforms(document, told["application/json"]["schema"], msgspec.json.decode(written))
