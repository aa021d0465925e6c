"""Calls a gateway: `import sluicegate` gives the names of this package."""

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
    AnswerSpan,
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
    Spans,
    SparseVector,
    Tokens,
    Usage,
    UsageLine,
    UsageReport,
)

__all__ = [
    "Answer",
    "AnswerSpan",
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
    "Spans",
    "SparseVector",
    "Tokens",
    "Unavailable",
    "UpstreamFailed",
    "Usage",
    "UsageLine",
    "UsageReport",
]
