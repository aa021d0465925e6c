"""OpenAI's errors name the field to blame where the message does."""

import msgspec
import pytest

from sluicegate.gateway.dialects.openai_errors import OPENAI_ERRORS, OpenAIError
from sluicegate.gateway.errors import GatewayError, InvalidRequest, RateLimited


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (
            InvalidRequest("The body does not fit the route: Expected `int` - at `$.a[1].b`."),
            "a[1].b",
        ),
        (
            InvalidRequest("The body does not fit the route: Object missing required field `c`."),
            "c",
        ),
        (
            InvalidRequest("The body does not fit the route: Object contains unknown field `d`."),
            "d",
        ),
        (
            InvalidRequest("The request does not fit the route: `limit`: Expected `int` >= 1."),
            "limit",
        ),
        (InvalidRequest("`purpose` must be `batch`."), "purpose"),
        (InvalidRequest("`input` has token ids; send texts."), "input"),
        (InvalidRequest("`sentiment` is not configured for moderation."), None),
        (InvalidRequest("The body is empty; send JSON."), None),
        (RateLimited("`minute` must wait."), None),
    ],
)
def test_the_field_to_blame_is_named(error: GatewayError, field: str | None) -> None:
    body = msgspec.json.decode(OPENAI_ERRORS.encode(error, "req_1"), type=OpenAIError)

    assert body.error.param == field
