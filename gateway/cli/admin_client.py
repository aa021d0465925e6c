"""Asks the admin listener, for commands that are shorter lived than an HTTP library's import."""

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec
from click.core import ParameterSource

from gateway.cli.connecting import choose_listener
from gateway.cli.failures import ADMIN_REFUSED, Failure

F = TypeVar("F", bound=Callable[..., Any])
_TIMEOUT = 30.0


class AdminClient:
    """A client of one listener; a refusal is a `Failure` with what the listener said."""

    def __init__(self, *, url: str, key: str) -> None:
        self._url = url
        self._key = key

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: object = None,
        patience: float = _TIMEOUT,
        also: str = "",
    ) -> Any:
        """Return the answer's JSON, within `patience` seconds for each step of the exchange.

        A problem of the code `also` is an answer, too.

        Raises:
            Failure: nothing answers, or it refuses.
        """
        status, content = self._exchange(method, path, query or {}, body, patience)
        try:
            answer = msgspec.json.decode(content)
        except msgspec.DecodeError as error:
            raise self._failure(f"answered {status} and no JSON") from error
        if status >= http.client.BAD_REQUEST and not (also and answer.get("code") == also):
            raise self._failure(_problem(answer))
        return answer

    def _exchange(
        self, method: str, path: str, query: dict[str, str], body: object, patience: float
    ) -> tuple[int, bytes]:
        parts = urlsplit(self._url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=patience)
        bearer = f"Bearer {self._key}".encode()  # else letters beyond Latin 1 could not be sent
        headers = {"Authorization": bearer, "Content-Type": b"application/json"}
        target = parts.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(
                method,
                target,
                body=None if body is None else msgspec.json.encode(body),
                headers=headers,
            )
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(f"cannot be reached ({error}); is the gateway running?") from error
        finally:
            connection.close()

    def _failure(self, what: str) -> Failure:
        return Failure(f"the admin listener {self._url}: {what}", ADMIN_REFUSED)


def quoted(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def _problem(answer: Any) -> str:
    if not isinstance(answer, dict):
        return "refused"
    place = f"{answer['file']}:{answer.get('line')}: " if answer.get("file") else ""
    field = f"{answer['field']}: " if answer.get("field") else ""
    return f"{place}{field}{answer.get('detail') or answer.get('title')}"


def admin_options(command: F) -> F:
    """Give `command` the options that say where the listener is; it takes an `AdminClient`."""

    def connect(context: click.Context, _: click.Parameter, given: str) -> AdminClient:
        named = (ParameterSource.COMMANDLINE, ParameterSource.PROMPT)
        from_line = {
            name: context.get_parameter_source(name) in named
            for name in ("client", "admin_key", "data_dir")
        }
        url, key = choose_listener(
            given,
            context.meta["admin_key"],
            context.meta["data_dir"],
            insists=from_line["data_dir"] and not (from_line["client"] and from_line["admin_key"]),
        )
        return AdminClient(url=url, key=key)

    for decorate in (
        click.option(
            "--admin-url",
            "client",
            envvar="SLUICEGATE_ADMIN_URL",
            default="",
            callback=connect,
            help="Else that of the instance that runs on the data directory.",
        ),
        click.option(
            "--admin-key",
            envvar="SLUICEGATE_ADMIN_KEY",
            default="",
            is_eager=True,
            expose_value=False,
            callback=_keep,
            help="Else the one that `sluicegate up` keeps in its data directory.",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            envvar="SLUICEGATE_DATA_DIR",
            default=".sluicegate",
            is_eager=True,
            expose_value=False,
            callback=_keep,
        ),
    ):
        command = decorate(command)
    return command


def _keep(context: click.Context, option: click.Parameter, value: Any) -> Any:
    context.meta[str(option.name)] = value
    return value
