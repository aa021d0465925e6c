"""The tree that the docstring of the errors draws is the tree of the classes."""

import re

import pytest

from sluicegate.gateway import errors
from sluicegate.gateway.errors import ClientError, GatewayError, UpstreamError

_LINE = re.compile(r"^((?:│   |    )*)[├└]── (\w+) +(\d{3})?   (\S.*)$", re.MULTILINE)
_ABSTRACT = {ClientError, UpstreamError}


def _drawn() -> dict[str, tuple[str, str, str]]:
    """Return parent, status and text of each class in the docstring."""
    parents = [GatewayError.__name__]
    found: dict[str, tuple[str, str, str]] = {}
    for indent, name, status, text in _LINE.findall(errors.__doc__ or ""):
        del parents[len(indent) // 4 + 1 :]
        assert name not in found
        found[name] = (parents[-1], status, text)
        parents.append(name)
    return found


def _classes(kind: type[GatewayError] = GatewayError) -> list[type[GatewayError]]:
    below = [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return [*below, *(each for one in below for each in _classes(one))]


def test_the_docstring_draws_every_class_below_its_parent_with_its_status() -> None:
    drawn = {name: (parent, status) for name, (parent, status, _) in _drawn().items()}

    assert drawn == {
        kind.__name__: (
            kind.__bases__[0].__name__,
            "" if kind in _ABSTRACT else str(kind.status),
        )
        for kind in _classes()
    }


@pytest.mark.parametrize("kind", _classes())
def test_the_docstring_says_which_errors_are_retryable(kind: type[GatewayError]) -> None:
    _, _, text = _drawn()[kind.__name__]

    assert kind.retryable == text.startswith("retryable")


def test_a_code_belongs_to_one_error() -> None:
    codes = [kind.code for kind in _classes() if kind not in _ABSTRACT]

    assert sorted(codes) == sorted(set(codes))
