"""Runs the checks of clients in their own environment; needs the standard library only.

A program is given a `Target` as JSON in its first argument, and prints what it found as JSON.
"""

import json
import math
import secrets
import sys
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

Check = Callable[["Target"], object]
TEXTS = ["a gorgeous, witty movie", "only labored gags", "how do I reset my PIN?"]
_TOLERANCE = 1e-6


class Row(StrEnum):
    """A row of the matrix: every client has a check in each row, and a store in the first."""

    RESULT = "result"
    """Every method that is answered, with the native route's result."""
    WRONG_KEY = "wrong key"
    UNKNOWN_MODEL = "unknown model"
    OVER_LIMIT = "over the limit"
    """The client's own retry then succeeds; where it has none, its error says when to ask again."""
    DEADLINE = "deadline"
    """The client's own, and that of the server where the client can send one."""
    BAD_INPUT = "bad input"


class Target(NamedTuple):
    """Holds where the running system is, and keys for it."""

    url: str
    grpc: str
    """Host and port of the Open Inference Protocol over gRPC; empty where it is not served."""
    key: str
    limited_key: str
    """One request in two seconds."""
    narrow_key: str
    """For the model `sentiment` only."""
    ranking_key: str
    """For the model `minilm` only."""
    slow_model: str
    """Embeds and reranks, each item after two seconds."""
    vectors_model: str = ""
    """Has dense, sparse and multi-vector outputs."""
    vectors_answers: str = ""
    """A file of the reference libraries' texts and vectors of this model."""

    def native(self, path: str, body: object) -> Any:
        """Return the answer of a native route."""
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - http
            self.url + path, json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - http
            return json.load(response)

    def vectors(self, texts: Sequence[str], **fields: object) -> Any:
        """Return the vectors of texts by the native route, of `minilm` unless `model` is given."""
        body = {"model": "minilm", "input": texts, **fields}
        return [each["embedding"] for each in self.native("/v1/embed", body)["results"]]


class Client(NamedTuple):
    """Holds the checks of one client by row, and methods of it that are not answered."""

    name: str
    distribution: str
    """What its version is read from."""
    rows: Mapping[Row, Sequence[Check]]
    error: Any = Exception
    """The client's own class of errors, which methods that are not answered raise."""
    not_answered: Mapping[str, Check] = {}
    """Calls of such methods, by their names."""
    required: Sequence[Row] = tuple(Row)
    """The rows in which it must have checks."""


def new_text() -> str:
    """Return a text that was never sent."""
    return f"never seen before {secrets.token_hex()}"


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
    raise AssertionError(f"no {kind}")


def _checks(client: Client) -> Iterator[tuple[str, str, Check]]:
    """Yield row, name and check; a row that the client lacks fails."""
    for row in client.required:
        for check in client.rows.get(row) or [_the_row_has_checks]:
            yield row, check.__name__.replace("_", " "), check
    for name, call in client.not_answered.items():
        yield "not answered", name, partial(_refused, client.error, call)


def _the_row_has_checks(target: Target) -> None:
    raise AssertionError("none")


def _refused(kind: Any, call: Check, target: Target) -> object:
    """Return the client's error."""
    return raised(kind, lambda: call(target))


def run_checks(*clients: Client) -> None:
    """Run every check of the clients, and print a line for each: what went wrong, or nothing.

    The note of a line is what the check's docstring says, or the error of what is not answered.
    """
    target = Target(**json.loads(sys.argv[1]))
    lines = []
    for client in clients:
        for row, name, check in _checks(client):
            note = "" if isinstance(check, partial) else check.__doc__ or ""
            wrong = ""
            try:
                found = check(target)
            except Exception:  # noqa: BLE001 - one check must not end the others
                wrong = traceback.format_exc(limit=-2)
            else:
                note = type(found).__name__ if isinstance(found, Exception) else note
            line = {"row": row, "check": name, "note": note, "wrong": wrong}
            lines.append({"client": client.name, "version": version(client.distribution)} | line)
    print(json.dumps(lines))  # noqa: T201 - the result
