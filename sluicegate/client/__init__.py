"""Calls a Sluicegate gateway, with `Sluicegate` (blocking) or `AsyncSluicegate` (asyncio).

from sluicegate import Sluicegate

with Sluicegate("http://127.0.0.1:8080", key="sk-...") as client:
    answer = client.classify("sentiment", ["a gorgeous, witty movie"])
    print(answer.results[0].labels[0].label)
"""

from importlib.metadata import version as _version

try:
    from sluicegate.client.async_client import AsyncSluicegate
    from sluicegate.client.blocking_client import Sluicegate
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    raise ModuleNotFoundError(
        "the client needs `httpx`; run"
        " `pip install 'sluicegate-0.1.0-py3-none-any.whl[client]'`, or in a clone"
        " `pip install '.[client]'`",
        name="httpx",
    ) from error
from sluicegate.client.errors import (
    ApiError,
    AuthenticationFailed,
    BudgetExhausted,
    Conflict,
    DeadlineExceeded,
    InvalidItem,
    InvalidRequest,
    NoAnswer,
    NotCached,
    NotFound,
    PayloadTooLarge,
    PermissionDenied,
    RateLimited,
    SluicegateError,
    Unavailable,
    UpstreamFailed,
)
from sluicegate.client.options import Options
from sluicegate.client.parts import Progress
from sluicegate.client.results import (
    Answer,
    BudgetReport,
    Choice,
    DecodedText,
    Embedding,
    Entities,
    Entity,
    ItemError,
    Labels,
    LabelScore,
    Model,
    PastRequest,
    PastRequestList,
    RankedDocument,
    Readiness,
    RotatedKey,
    SparseVector,
    Tokens,
    Usage,
    UsageLine,
    UsageReport,
)

__version__ = _version("sluicegate")
__all__ = [
    "Answer",
    "ApiError",
    "AsyncSluicegate",
    "AuthenticationFailed",
    "BudgetExhausted",
    "BudgetReport",
    "Choice",
    "Conflict",
    "DeadlineExceeded",
    "DecodedText",
    "Embedding",
    "Entities",
    "Entity",
    "InvalidItem",
    "InvalidRequest",
    "ItemError",
    "LabelScore",
    "Labels",
    "Model",
    "NoAnswer",
    "NotCached",
    "NotFound",
    "Options",
    "PastRequest",
    "PastRequestList",
    "PayloadTooLarge",
    "PermissionDenied",
    "Progress",
    "RankedDocument",
    "RateLimited",
    "Readiness",
    "RotatedKey",
    "Sluicegate",
    "SluicegateError",
    "SparseVector",
    "Tokens",
    "Unavailable",
    "UpstreamFailed",
    "Usage",
    "UsageLine",
    "UsageReport",
    "__version__",
]
