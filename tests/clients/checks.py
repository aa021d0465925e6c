"""Runs the checks of one client in the client's own environment; needs the standard library only.

A program is given a `Target` as JSON in its first argument, and prints what it found as JSON.
"""

import json
import math
import sys
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

Check = Callable[["Target"], None]
_TOLERANCE = 1e-6


class Target(NamedTuple):
    """Holds where the running system is, and keys for it."""

    url: str
    key: str
    limited_key: str
    """One request in two seconds."""
    narrow_key: str
    """For the model `sentiment` only."""

    def native(self, path: str, body: object) -> Any:
        """Return the answer of a native route."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - http
            self.url + path, json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - http
            return json.load(response)


def assert_close(found: Any, expected: Any) -> None:
    """Fail unless two JSON values are equal but for the last digits of numbers."""
    if isinstance(expected, list):
        assert len(found) == len(expected), (len(found), len(expected))
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert math.isclose(found, expected, abs_tol=_TOLERANCE), (found, expected)
    else:
        assert found == expected, (found, expected)


def raised(kind: Any, call: Callable[[], object]) -> Any:
    """Return the error of that class that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run_checks(checks: list[Check]) -> None:
    """Run every check, and print by its name what went wrong, or nothing."""
    target = Target(**json.loads(sys.argv[1]))
    found = {}
    for check in checks:
        try:
            check(target)
        except Exception:  # noqa: BLE001 - one check must not end the others
            found[check.__name__] = traceback.format_exc(limit=-2)
        else:
            found[check.__name__] = ""
    print(json.dumps(found))  # noqa: T201 - the result
