"""`OPTIONS` names the methods that a path answers, whichever handlers they have."""

import pytest

from tests.support.api import AUTHORIZATION, Api
from tests.support.dialects import serve_models

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/models", "GET, HEAD, OPTIONS"),
        ("/v1/files", "GET, HEAD, OPTIONS, POST"),
        ("/v1/files/file-1", "DELETE, GET, HEAD, OPTIONS"),
        ("/v2/models/minilm", "GET, HEAD, OPTIONS"),
        ("/v2/repository/index", "OPTIONS, POST"),
    ],
)
async def test_options_names_the_methods_of_a_path(path: str, methods: str) -> None:
    async with serve_models(Api()).client() as client:
        response = await client.options(path)

    assert (response.status_code, response.headers["allow"]) == (204, methods)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/v1/models", "GET, HEAD, OPTIONS"), ("/v1/files/a", "DELETE, GET, HEAD, OPTIONS")],
)
async def test_a_refused_method_names_those_of_the_path_in_order(path: str, methods: str) -> None:
    async with serve_models(Api()).client() as client:
        response = await client.patch(path, headers=AUTHORIZATION)

    assert (response.status_code, response.headers["allow"]) == (405, methods)
