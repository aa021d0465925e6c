"""What several workers say of a backend is put together, workers of two versions among them."""

import msgspec
import pytest

from sluicegate.gateway.operations.fleet_view import merge_reports

OLD = {"backend": "eu-0", "health": "ready"}
NEW = OLD | {"models": {"sentiment": "abc"}, "problems": {"topics": "it is broken"}}
AWAY = NEW | {"health": "unreachable", "models": {"sentiment": "of before"}}


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ([OLD, NEW], NEW),
        ([NEW, OLD], NEW),
        ([AWAY, NEW], NEW),
        ([NEW, AWAY], NEW),
        ([AWAY, OLD], OLD),
        ([AWAY], AWAY),
    ],
)
def test_who_hears_from_a_backend_and_says_what_it_serves_has_the_say(
    views: list[dict[str, object]], expected: dict[str, object]
) -> None:
    reports = {f"w{n}": msgspec.json.encode({"fleet": [view]}) for n, view in enumerate(views)}

    (found,) = merge_reports(reports).values()

    assert (found.health, found.models) == (expected["health"], expected.get("models", {}))
