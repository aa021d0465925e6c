"""Calls the operators' listener for commands, and prints the listener's responses."""

import ssl
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec
from click.core import ParameterSource

from sluicegate.gateway.cli.connecting import choose_listener
from sluicegate.gateway.cli.failures import ADMIN_REFUSED, Failure, UnconfirmedFailure
from sluicegate.gateway.operations.declaration import Operation
from sluicegate.gateway.sockets.certificate_files import first_certificate
from sluicegate.gateway.supervisor.errors import ExitCode

F = TypeVar("F", bound=Callable[..., Any])
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_TIMEOUT = 30.0
_MAX_RESPONSE_BYTES = 256 * 1024 * 1024


class AdminClient:
    """Calls an operators' listener. Raises a `Failure` if the listener refuses a request.

    If the listener is on this machine, `trusted` is the path of its certificate. `shown` is the
    path of a file with the operator's client certificate and private key.
    """

    def __init__(self, *, url: str, key: str, trusted: str = "", shown: Path | None = None) -> None:
        self._url = url
        self._key = key
        self._trusted = trusted
        self._shown = shown

    def carry_out(
        self,
        operation: Operation[..., Any],
        *path: str,
        query: dict[str, str] | None = None,
        body: object = None,
        timeout: float = _TIMEOUT,
        accept_code: str = "",
    ) -> Any:
        """Carry out an operation, and return its result. `path` has the parameters in its path.

        The other parameters and the errors are those of `request`.
        """
        return self.request(
            operation.method,
            operation.path_to(*path),
            query=query,
            body=body,
            timeout=timeout,
            accept_code=accept_code,
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: object = None,
        timeout: float = _TIMEOUT,
        accept_code: str = "",
    ) -> Any:
        """Return the JSON of the response. `timeout` limits each read and each write, in seconds.

        A problem document with the code `accept_code` is returned like a success.

        Raises:
            UnconfirmedFailure: the request was sent, but its outcome is unknown.
            Failure: the request could not be sent, or the listener refused it.
        """
        status, content = self._exchange(method, path, query or {}, body, timeout)
        is_refusal = HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR
        try:
            answer = msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            said = f"sent a response of status {status} without JSON"
            raise self._failure(said, may_be_done=not is_refusal) from error
        if status >= HTTPStatus.BAD_REQUEST and not (
            accept_code and answer.get("code") == accept_code
        ):
            raise self._failure(_problem(answer), may_be_done=not is_refusal)
        return answer

    def _exchange(
        self, method: str, path: str, query: dict[str, str], body: object, timeout: float
    ) -> tuple[int, bytes]:
        # Imported late, because the import takes 100 ms and 9 MB, and `up` does not need it.
        import httpx  # noqa: PLC0415

        parts = urlsplit(self._url)
        target = quote(parts.path.rstrip("/"), safe="/%") + path
        try:
            # The URL is built from its parts without a user name. A user name in the URL would
            # replace the operator's key.
            url = httpx.URL(
                scheme=parts.scheme, host=parts.hostname or "", port=parts.port, path=target
            )
            request = httpx.Request(
                method,
                url.copy_with(query=urlencode(query).encode() if query else None),
                headers={
                    # The key is sent as bytes, because httpx cannot encode characters that are not
                    # in Latin-1.
                    b"Authorization": f"Bearer {self._key}".encode(),
                    b"Content-Type": b"application/json",
                },
                content=None if body is None else msgspec.json.encode(body),
            )
            # With `trust_env=False`, proxies are ignored. A proxy would see the key.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if parts.scheme == "https":
                context = self._tls()
            with httpx.Client(verify=context, timeout=timeout, trust_env=False) as client:
                response = client.send(request, stream=True)
                return response.status_code, self._read(response.iter_bytes())
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            said = f"cannot be reached ({error}): check that the gateway runs"
            if self._trusted and "CERTIFICATE_VERIFY_FAILED" in str(error):
                said = (
                    f"uses another certificate than `{self._trusted}` ({error}): it loads a new"
                    " file within 5 s, or logs why it cannot"
                )
            unsent = (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol)
            may_be_done = isinstance(error, httpx.HTTPError) and not isinstance(error, unsent)
            raise self._failure(said, may_be_done=may_be_done) from error

    def _tls(self) -> ssl.SSLContext:
        """Return a context that trusts the certificate `trusted` or, without it, the system's CAs.

        Raises:
            OSError: a file cannot be used.
        """
        if self._trusted:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # Exactly this certificate is trusted, whatever names and issuer it has.
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            chain = Path(self._trusted).read_text("latin-1")
            try:
                context.load_verify_locations(cadata=first_certificate(chain))
            except ValueError as error:  # the file is being replaced right now
                raise OSError(f"`{self._trusted}`: {error}") from error
        else:
            context = ssl.create_default_context()
        if self._shown is not None:
            context.load_cert_chain(self._shown, password=lambda: "")
        return context

    def _read(self, chunks: Iterator[bytes]) -> bytes:
        body = bytearray()
        for chunk in chunks:
            body += chunk
            if len(body) > _MAX_RESPONSE_BYTES:
                said = f"sent a response of more than {_MAX_RESPONSE_BYTES} bytes"
                raise self._failure(said, may_be_done=True)
        return bytes(body)

    def _failure(self, what: str, *, may_be_done: bool) -> Failure:
        kind = UnconfirmedFailure if may_be_done else Failure
        return kind(f"the operators' listener {self._url}: {what}", ADMIN_REFUSED)


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_change(
    answer: Any, *, as_json: bool, head: str = "", more: Callable[[Any], None] = lambda _: None
) -> None:
    """Print the outcome of a change on each worker, or print the whole response as JSON.

    `head` is printed before the outcomes. `more` is called after the outcomes and prints further
    lines. Exit with 1 if a worker has not applied the change.
    """
    if as_json:
        print_json(answer)
    else:
        if head:
            click.echo(head)
        for name, outcome in answer["workers"].items():
            click.echo(f"{name}: {outcome}")
        more(answer)
    if not answer["live"]:
        raise SystemExit(ExitCode.FAILED)


def _problem(answer: Any) -> str:
    if not isinstance(answer, dict):
        return "refused"
    place = f"{answer['file']}:{answer.get('line')}: " if answer.get("file") else ""
    field = f"{answer['field']}: " if answer.get("field") else ""
    return f"{place}{field}{answer.get('detail') or answer.get('title')}"


def admin_options(command: F) -> F:
    """Add options to `command`: `--json`, and the options that choose the listener.

    The command is called with the arguments `client` (an `AdminClient`) and `as_json`.
    """
    for decorate in (
        JSON,
        click.option(
            "--admin-url",
            "client",
            envvar="SLUICEGATE_ADMIN_URL",
            default="",
            callback=_connect,
            help="Address of the operators' listener.  [default: found in the data directory]",
        ),
        click.option(
            "--admin-key",
            envvar="SLUICEGATE_ADMIN_KEY",
            default="",
            is_eager=True,
            expose_value=False,
            callback=_store,
            help="Key of an operator.  [default: the key that `sluicegate up` keeps in its data"
            " directory]",
        ),
        click.option(
            "--admin-certificate",
            type=click.Path(path_type=Path, dir_okay=False),
            envvar="SLUICEGATE_ADMIN_CERTIFICATE",
            is_eager=True,
            expose_value=False,
            callback=_store,
            help="PEM file of a client certificate and its key, if the listener requires one.",
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            envvar="SLUICEGATE_DATA_DIR",
            default=".sluicegate",
            is_eager=True,
            expose_value=False,
            callback=_store,
            help="Data directory of a gateway on this machine.  [default: .sluicegate]",
        ),
    ):
        command = decorate(command)
    return command


def _connect(context: click.Context, _: click.Parameter, given: str) -> AdminClient:
    named = (ParameterSource.COMMANDLINE, ParameterSource.PROMPT)
    from_line = {
        name: context.get_parameter_source(name) in named
        for name in ("client", "admin_key", "data_dir")
    }
    url, key, trusted = choose_listener(
        given,
        context.meta["admin_key"],
        context.meta["data_dir"],
        prefer_data_dir=from_line["data_dir"]
        and not (from_line["client"] and from_line["admin_key"]),
    )
    return AdminClient(url=url, key=key, trusted=trusted, shown=context.meta["admin_certificate"])


def _store(context: click.Context, option: click.Parameter, value: Any) -> Any:
    context.meta[str(option.name)] = value
    return value
