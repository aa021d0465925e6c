"""Chooses which operators' listener a command calls, and which key it sends to the listener."""

from pathlib import Path
from urllib.parse import urlsplit

import click

from sluicegate.gateway.admin.operator_access import OperatorAccess, read_access, read_key
from sluicegate.gateway.auth.keys import is_sendable

_LOCAL = ("localhost", "127.0.0.1", "::1")
_OTHERWISE = (
    "give both `--admin-url` and `--admin-key` (SLUICEGATE_ADMIN_URL, SLUICEGATE_ADMIN_KEY)"
)


def choose_listener(
    url: str, key: str, data_dir: Path, *, prefer_data_dir: bool
) -> tuple[str, str, str]:
    """Return an operators' listener: its URL, the key to send, and the path of its certificate.

    If both `url` and `key` are given, they are returned with an empty path. Otherwise, the result
    describes the listener that runs on `data_dir`. If only the URL or only the key is given, it
    must belong to this listener, so that a key is never sent to a wrong listener.

    `prefer_data_dir` is true if the user has named the directory more explicitly than the URL and
    the key. Then the directory's listener is used even if both are given, and both must belong to
    it.

    Raises:
        click.UsageError: the URL or the key is invalid, they do not belong together, or no
            listener runs on `data_dir`.
    """
    _check_url(url)
    _check_key(key)
    if url and key and not prefer_data_dir:
        return url, key, ""
    access = _access(data_dir)
    if access is None:
        raise click.UsageError(_explain_missing(url, key, data_dir))
    if url and _address(url) != _address(access.url):
        raise click.UsageError(
            f"the listener on `{data_dir}` is at {access.url}, and its key is not sent to {url}:"
            f" {_OTHERWISE}"
        )
    if key and not access.takes(key):
        raise click.UsageError(
            f"the given key does not belong to the listener on `{data_dir}`, at {access.url}, and"
            f" is not sent there: {_OTHERWISE}"
        )
    return access.url, key or _kept_key(data_dir, access), access.certificate


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if url and not is_address:
        raise click.UsageError(
            "`--admin-url` (SLUICEGATE_ADMIN_URL) must be an address such as http://127.0.0.1:8081"
        )


def _check_key(key: str) -> None:
    # The message does not contain the value, because the value may be a key with a line break.
    if key and not is_sendable(key):
        raise click.UsageError(
            "`--admin-key` (SLUICEGATE_ADMIN_KEY) cannot be sent: remove line breaks, and spaces at"
            " its ends"
        )


def _access(data_dir: Path) -> OperatorAccess | None:
    try:
        return read_access(data_dir)
    except OSError as error:
        raise click.UsageError(f"`{error.filename}` cannot be read: {error.strerror}") from error


def _kept_key(data_dir: Path, access: OperatorAccess) -> str:
    try:
        key = read_key(data_dir)
    except OSError as error:
        raise click.UsageError(f"`{error.filename}` cannot be read: {error.strerror}") from error
    if not key or not access.takes(key):
        raise click.UsageError(
            f"`{data_dir}` does not contain the key of its listener: give it with `--admin-key` or"
            " SLUICEGATE_ADMIN_KEY"
        )
    return key


def _explain_missing(url: str, key: str, data_dir: Path) -> str:
    if url and not key:
        return f"the key for {url} is missing: give it with `--admin-key`"
    if key and not url:
        return (
            f"the address of the listener is missing, and none runs on `{data_dir}`: give"
            " `--admin-url`, too"
        )
    return f"no listener runs on `{data_dir}`: name another `--data-dir`, or {_OTHERWISE}"


def _address(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL.

    If the URL's host is a name of this machine, the returned host is `localhost`.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme, _LOCAL[0] if host in _LOCAL else host, parts.port
