"""What SIGHUP says about the response of the operators' listener."""

import msgspec
import pytest

from sluicegate.gateway.supervisor.reload import ReloadAnswer, describe


@pytest.mark.parametrize(
    ("status", "body", "line"),
    [
        (200, b'{"generation": 3, "digest": "x"}', "the configuration is at generation 3"),
        (
            202,
            b'{"generation": 3}',
            "the configuration is at generation 3, which not every worker uses yet",
        ),
        (
            422,
            b'{"detail": "expected a list", "file": "c/g.yaml", "line": 4, "field": "prices"}',
            "the configuration was not reloaded: c/g.yaml:4: prices: expected a list",
        ),
        (401, b'{"detail": "send a key"}', "the configuration was not reloaded: send a key"),
    ],
)
def test_an_answer_is_one_line(status: int, body: bytes, line: str) -> None:
    assert describe(status, msgspec.json.decode(body, type=ReloadAnswer)) == line
