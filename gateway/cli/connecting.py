"""Chooses the operators' listener that a command calls, and the key, both of one instance."""

from pathlib import Path
from urllib.parse import urlsplit

import click

from gateway.admin.operator_access import OperatorAccess, read_access, read_key
from gateway.auth.keys import is_sendable

_LOCAL = ("localhost", "127.0.0.1", "::1")
_OTHERWISE = (
    "give both `--admin-url` and `--admin-key` (SLUICEGATE_ADMIN_URL, SLUICEGATE_ADMIN_KEY)"
)


def choose_listener(
    url: str, key: str, data_dir: Path, *, prefer_data_dir: bool
) -> tuple[str, str, str]:
    """Return URL and key: those given, or those of the instance on `data_dir`.

    Third is the file of the certificate that this instance shows, if it is known.

    If only one is given, it must be that instance's. With `prefer_data_dir`, where the directory is
    given more explicitly than the rest, both must be.

    Raises:
        click.UsageError: they are of different instances, or of none, or cannot be one.
    """
    _check_url(url)
    _check_key(key)
    if url and key and not prefer_data_dir:
        return url, key, ""
    access = _access(data_dir)
    if access is None:
        raise click.UsageError(_explain_missing(url, key, data_dir))
    if url and not _is_same(url, access.url):
        raise click.UsageError(
            f"`{data_dir}` is of the instance at {access.url}, and {url} is another address: its "
            f"key is not sent there; {_OTHERWISE}"
        )
    if key and not access.takes(key):
        raise click.UsageError(
            f"the key that is given is not that of the instance on `{data_dir}`, at {access.url}: "
            f"it is not sent there; {_OTHERWISE}"
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
    # Not shown: what is refused may be a key and a line break.
    if key and not is_sendable(key):
        raise click.UsageError(
            "`--admin-key` (SLUICEGATE_ADMIN_KEY) cannot be sent: is there a line break in it, or a"
            " blank at one of its ends?"
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
            f"the key of the instance on `{data_dir}` is not kept there; give it with "
            "`--admin-key` or SLUICEGATE_ADMIN_KEY"
        )
    return key


def _explain_missing(url: str, key: str, data_dir: Path) -> str:
    if url and not key:
        return f"nothing says which key goes to {url}: give it with `--admin-key`"
    if key and not url:
        return (
            f"nothing says where the key goes: no instance runs on `{data_dir}`; give "
            "`--admin-url` too"
        )
    return f"no instance runs on `{data_dir}`; name another `--data-dir`, or {_OTHERWISE}"


def _is_same(one: str, other: str) -> bool:
    return _address(one) == _address(other)


def _address(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return parts.scheme, _LOCAL[0] if host in _LOCAL else host, parts.port
