"""Lists the routes of the Open Inference Protocol v2 over HTTP."""

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.api.inference_route import InferenceRoute
from sluicegate.gateway.api.openapi_parts import Json, Operation
from sluicegate.gateway.dialects.base import dialect_operation
from sluicegate.gateway.dialects.oip.errors import OIP_ERRORS
from sluicegate.gateway.dialects.oip.handlers import OPERATIONS, answer_route, probe_health
from sluicegate.gateway.dialects.oip.infer_routes import OipInferRoute, OipVersionInferRoute
from sluicegate.gateway.dialects.oip.wire import OipInferAnswer, OipInferBody

_TEXT = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a gorgeous, witty movie"]}
_EXAMPLE: Json = {"inputs": [_TEXT], "outputs": [{"name": "LABEL"}, {"name": "SCORE"}]}
_ANSWER: Json = {
    "model_name": "sentiment",
    "model_version": "1",
    "outputs": [
        {"name": "LABEL", "datatype": "BYTES", "shape": [1, 1], "data": ["positive"]},
        {"name": "SCORE", "datatype": "FP32", "shape": [1, 1], "data": [0.98]},
    ],
}


def _operation(route: InferenceRoute, name: str, path: dict[str, str]) -> Operation:
    return dialect_operation(
        route,
        dialect="open-inference",
        id=name,
        summary="Run a model with tensors, as Triton's and KServe's clients do",
        body=OipInferBody,
        example=_EXAMPLE,
        answer=OipInferAnswer,
        answer_example=_ANSWER,
        path_example=path,
    )


_MODEL, _VERSION = OipInferRoute(), OipVersionInferRoute()
OPEN_INFERENCE = Dialect(
    name="open-inference",
    title="As clients of Triton and KServe",
    description="The Open Inference Protocol v2, for clients of Triton and KServe.",
    routes={
        _MODEL: _operation(_MODEL, "oip_infer", {"model": "sentiment"}),
        _VERSION: _operation(_VERSION, "oip_version_infer", {"model": "sentiment", "version": "1"}),
    },
    handlers=(answer_route, probe_health),
    operations=OPERATIONS,
    errors=OIP_ERRORS,
    paths=("/v2",),
)
