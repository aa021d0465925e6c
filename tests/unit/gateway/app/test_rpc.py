"""What gRPC needs is imported where it is wanted, and named where it is missing."""

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

import pytest

from sluicegate.gateway.app.rpc import dialects_of, open_rpc_listener
from sluicegate.gateway.auth.key_ring import KeyRing
from sluicegate.gateway.config.document import Document
from sluicegate.gateway.dialects.registry import DIALECTS
from sluicegate.gateway.errors import ConfigurationError
from sluicegate.gateway.http.draining import Draining
from sluicegate.gateway.settings import Settings
from tests.support.api import Api


def opened(settings: Settings) -> Any:
    api = Api()
    return open_rpc_listener(
        api.routed(),
        settings,
        steps=api.steps,
        bodies=api.bodies,
        keys=KeyRing(),
        document=Document(),
        draining=Draining(),
        stop=asyncio.Event(),
    )


def test_a_worker_without_grpc_imports_none_of_it() -> None:
    code = (
        "import sys; from sluicegate.gateway.app import worker;"
        " from sluicegate.gateway.app.rpc import dialects_of;"
        "from sluicegate.gateway.settings import Settings; dialects_of(Settings());"
        "print([name for name in ('grpc', 'sluicegate.gateway.rpc') if name in sys.modules])"
    )

    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
    assert dialects_of(Settings()) is DIALECTS
    assert isinstance(opened(Settings()), contextlib.nullcontext)


def test_with_grpc_its_routes_are_answered_beside_all_others() -> None:
    own = [one for one in dialects_of(Settings(grpc_port=8001)) if one not in DIALECTS]

    assert [route.path for one in own for route in one.routes] == [
        "/inference.GRPCInferenceService/ModelInfer"
    ]


def test_without_its_library_it_is_refused_by_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(grpc_port=8001)
    for name in ("sluicegate.gateway.rpc.listener", "sluicegate.gateway.rpc.infer_route"):
        monkeypatch.setitem(sys.modules, name, None)

    for ask in (dialects_of, opened):
        with pytest.raises(ConfigurationError, match=r"grpc\].*SLUICEGATE_GRPC_PORT"):
            ask(settings)
