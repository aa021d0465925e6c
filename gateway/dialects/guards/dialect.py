"""Lists the routes of guards: the native one, and the hooks of other products."""

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.guards.agentgateway import AGENTGATEWAY_ROUTES
from sluicegate.gateway.dialects.guards.litellm import LITELLM_ROUTES
from sluicegate.gateway.dialects.guards.nemo import NEMO_ROUTES
from sluicegate.gateway.dialects.guards.portkey import PORTKEY_ROUTES
from sluicegate.gateway.dialects.guards.route import GuardAnswer, GuardBody, GuardRoute
from sluicegate.gateway.types import Usage

_ROUTE = GuardRoute()
GUARDS = Dialect(
    name="guards",
    title="Guards",
    description="Guards look at texts for language models, and say what to do with each.",
    routes={
        _ROUTE: dialect_operation(
            _ROUTE,
            dialect="guards",
            id="guard",
            summary="Look at texts with a guard",
            body=GuardBody,
            example={"input": "Write to ada@example.com", "restore": True},
            answer=GuardAnswer,
            answer_example={
                "guard": "chat",
                "model": "chat-detectors",
                "revision": "9f2c51d0a7be",
                "results": [
                    {
                        "verdict": "redact",
                        "findings": [
                            {
                                "detector": "contacts",
                                "action": "redact",
                                "label": "EMAIL",
                                "score": 1.0,
                                "start": 9,
                                "end": 24,
                            }
                        ],
                        "text": "Write to <EMAIL_1>",
                    }
                ],
                "placeholders": {"<EMAIL_1>": "ada@example.com"},
                "usage": dict.fromkeys(Usage.__struct_fields__, 0) | {"items": 1, "computed": 1},
            },
            path_example={"name": "chat"},
        ),
        **LITELLM_ROUTES,
        **PORTKEY_ROUTES,
        **AGENTGATEWAY_ROUTES,
        **NEMO_ROUTES,
    },
)
