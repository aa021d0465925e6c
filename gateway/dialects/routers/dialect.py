"""Lists the routes of routers: the native one, and the one for other products."""

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.routers.route import RouteAnswer, RouteBody, RouteRoute
from sluicegate.gateway.dialects.routers.system_one import (
    SystemOneAnswer,
    SystemOneBody,
    SystemOneRoute,
)
from sluicegate.gateway.types import Usage

_FOUND = {
    "detector": "asks",
    "action": "flag",
    "label": "reasoning",
    "score": 0.84,
    "start": 0,
    "end": 45,
    "model": "minilm",
    "revision": "4be1c2a90d13",
}
_ROUTE, _SYSTEM_ONE = RouteRoute(), SystemOneRoute()
ROUTERS = Dialect(
    name="routers",
    title="Routers",
    description="Routers choose a target for a text, such as a language model, and say why.",
    routes={
        _ROUTE: dialect_operation(
            _ROUTE,
            dialect="routers",
            id="route",
            summary="Choose a target for texts",
            body=RouteBody,
            example={"input": "Prove that the square root of 2 is irrational."},
            answer=RouteAnswer,
            answer_example={
                "router": "chat",
                "model": "chat-detectors",
                "revision": "9f2c51d0a7be",
                "results": [{"target": "REASONING", "decided_by": _FOUND, "findings": [_FOUND]}],
                "usage": dict.fromkeys(Usage.__struct_fields__, 0) | {"items": 1, "computed": 1},
            },
            path_example={"name": "chat"},
        ),
        _SYSTEM_ONE: dialect_operation(
            _SYSTEM_ONE,
            dialect="routers",
            id="route_system_one",
            summary="Choose a target for LiteLLM, or for another client of the System One API",
            body=SystemOneBody,
            example={
                "state": "Prove that the square root of 2 is irrational.",
                "questions": {
                    "tier": {
                        "type": "choice",
                        "criteria": dict.fromkeys(["SIMPLE", "MEDIUM", "COMPLEX", "REASONING"]),
                    }
                },
            },
            answer=SystemOneAnswer,
            answer_example={
                "model": "chat-detectors",
                "answers": {
                    "tier": {
                        "type": "choice",
                        "choice": "REASONING",
                        "probabilities": {
                            "SIMPLE": 0.0,
                            "MEDIUM": 0.0,
                            "COMPLEX": 0.0,
                            "REASONING": 1.0,
                        },
                        "confidence": 0.84,
                    }
                },
                "usage": {"input_tokens": 14, "output_tokens": 0},
            },
            path_example={"name": "chat"},
        ),
    },
)
