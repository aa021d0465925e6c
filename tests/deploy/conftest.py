"""Renders each overlay of deploy/kubernetes once."""

from functools import cache

import pytest

from testing.manifests import OVERLAYS, Manifest, has_kubectl, render

_render = cache(render)


@pytest.fixture(params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    """Return the objects of an overlay, each in turn."""
    if not has_kubectl():
        pytest.skip("kubectl is not installed")
    return _render(request.param)
