"""Each API has its own name for what forbids that a long text is cut."""

import msgspec
import pytest

from sluicegate.gateway.dialects.cohere import CohereClassifyBody
from tests.unit.gateway.dialects.test_nulls_of_all_routes import ROUTES, decoded, example

_FIELDS = ("truncate", "truncation")


def _forbidding() -> dict[str, dict[str, object]]:
    """Return, for each path whose body can forbid it, the field that does so."""
    found: dict[str, dict[str, object]] = {}
    for path, (_, operation) in ROUTES.items():
        info = msgspec.inspect.type_info(operation.body[0].type)
        for field in info.fields if isinstance(info, msgspec.inspect.StructType) else ():
            if field.encode_name in _FIELDS:
                kinds = getattr(field.type, "types", (field.type,))
                is_switch = any(isinstance(kind, msgspec.inspect.BoolType) for kind in kinds)
                found[path] = {field.encode_name: False if is_switch else "NONE"}
    return found


_FORBIDDING = _forbidding()


def test_the_routes_of_all_dialects_are_tried() -> None:
    assert {"/v1/classify", "/v2/embed", "/jina/v1/embeddings"} <= set(_FORBIDDING)
    assert {"/voyage/v1/rerank", "/tei/{model}/rerank"} <= set(_FORBIDDING)


@pytest.mark.parametrize("path", _FORBIDDING)
def test_a_caller_who_forbids_it_gets_no_text_cut(path: str) -> None:
    _, asked = decoded(path, example(path))
    _, forbidden = decoded(path, example(path) | _FORBIDDING[path])

    assert asked.truncate
    assert not forbidden.truncate


def test_a_caller_of_coheres_classify_who_forbids_it_gets_no_text_cut() -> None:
    """Its path is a native route's, too."""
    body = CohereClassifyBody(model="m", inputs=["a"], truncate="NONE")

    assert not body.request().truncate
