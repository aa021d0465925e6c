"""Paths find their inference route, with the parameters in them."""

import pytest

from sluicegate.gateway.api.inference_route import InferenceRoute, InferenceRoutes
from sluicegate.wire.protocol import Task


class _Route(InferenceRoute):
    task = Task.EMBED

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__()


_ROUTES = InferenceRoutes(
    [
        _Route("/embed"),
        _Route("/v2/models/{model:path}/versions/{version}/infer"),
        _Route("/v2/models/{model:path}/infer"),
        _Route("/models/{model:path}"),
    ]
)


@pytest.mark.parametrize(
    ("path", "template", "parameters"),
    [
        ("/embed", "/embed", ()),
        ("//embed/", "/embed", ()),
        ("/models/BAAI/bge-small", "/models/{model}", ("BAAI/bge-small",)),
        ("/models/BAAI/bge-small/", "/models/{model}", ("BAAI/bge-small",)),
        ("/v2/models/a/infer", "/v2/models/{model}/infer", ("a",)),
        ("/v2/models/a/infer/", "/v2/models/{model}/infer", ("a",)),
        ("/v2/models/a/b/versions/2/infer", None, ("a/b", "2")),
    ],
)
def test_a_path_finds_its_route(
    path: str, template: str | None, parameters: tuple[str, ...]
) -> None:
    found = _ROUTES.find(path)

    assert found is not None
    assert found.parameters == parameters
    assert template in {None, found.route.template}


@pytest.mark.parametrize("path", ["/", "/models/", "/models", "/embeds", "/v2/models/"])
def test_other_paths_find_none(path: str) -> None:
    assert _ROUTES.find(path) is None
