"""Reports the usage of a complete job to a gateway's ledger, over the operators' listener."""

import time
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec
from typing_extensions import override

from sluicegate.bulk.errors import BulkStopped
from sluicegate.bulk.files import OutputFolder
from sluicegate.bulk.options import Manifest
from sluicegate.bulk.output import JOB
from sluicegate.bulk.usage import BulkUsage

T = TypeVar("T")
_ROLES = frozenset({"billing", "admin"})
_MAX_BYTES = 1024 * 1024
_TIMEOUT = 30.0
_PAUSES = (1.0, 2.0, 4.0, 8.0, None)
"""Seconds to wait after each failed attempt; `None` after the last one."""


class _Problem(msgspec.Struct):
    detail: str = ""


class _Operator(msgspec.Struct):
    name: str
    roles: list[str]


class _Counted(msgspec.Struct):
    counted: bool


class _NoRedirect(HTTPRedirectHandler):
    """Does not follow redirects, which would reveal the key to another host."""

    @override
    def redirect_request(self, *_: object) -> None:
        return None


class UsageReporter:
    """Reports the usage of jobs to a gateway. The ledger counts repeated reports of a job once.

    `wait` sleeps between attempts.
    """

    def __init__(
        self, url: str, *, tenant: str, key: str, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self._url = url.rstrip("/")
        self._tenant = tenant
        self._key = key.encode()  # bytes, because urllib only sends Latin 1 texts
        self._wait = wait
        # Without a proxy, which would learn the key.
        self._opener = build_opener(ProxyHandler({}), _NoRedirect)

    def check(self) -> None:
        """Check the operator's roles and the tenant before the job runs.

        Raises:
            BulkStopped: the listener refuses or does not answer, or the operator may not report.
        """
        operator = self._call("GET", "/admin/whoami", _Operator)
        if _ROLES.isdisjoint(operator.roles):
            raise BulkStopped(
                f"--usage-key-file: the operator `{operator.name}` needs the role `billing`"
            )
        self._call("GET", f"/admin/tenants/{quote(self._tenant, safe='')}", dict[str, Any])

    def report(self, manifest: Manifest, folder: OutputFolder) -> bool:
        """Report the usage of the complete job in a folder.

        Return `False` if the ledger already had this usage.

        Raises:
            BulkStopped: the report has failed.
        """
        if manifest.usage is None or JOB not in folder.names():
            raise BulkStopped("an earlier version ran this job and did not record its usage")
        job = folder.read(JOB).decode()
        body = msgspec.json.encode(reported(job, manifest, manifest.usage, self._tenant))
        try:
            return self._call("POST", "/admin/usage/reports", _Counted, body).counted
        except BulkStopped as error:
            raise BulkStopped(
                f"the job is complete, but its usage is not in the ledger: {error};"
                " run the same command again"
            ) from None

    def _call(self, method: str, path: str, kind: type[T], body: bytes | None = None) -> T:
        for pause in _PAUSES:
            try:
                return self._read(kind, self._send(method, path, body))
            except HTTPError as error:
                with error:
                    problem = BulkStopped(f"--usage-url: {error.code}: {_detail(error)}")
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR or pause is None:
                    raise problem from None
            except (OSError, HTTPException) as error:
                if pause is None:
                    raise BulkStopped(f"--usage-url: `{self._url}`: {error}") from None
            self._wait(pause)
        raise AssertionError("the last attempt returns or raises")

    def _read(self, kind: type[T], content: bytes) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BulkStopped(
                f"--usage-url: `{self._url}` does not answer like an operators' listener; check it"
            ) from None

    def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        headers: dict[str, Any] = {
            "authorization": b"Bearer " + self._key,
            "content-type": "application/json",
        }
        # `usage_reporter` has checked that the scheme is http or https.
        request = Request(self._url + path, body, headers, method=method)  # noqa: S310
        with self._opener.open(request, timeout=_TIMEOUT) as response:
            content: bytes = response.read(_MAX_BYTES)
        return content


def usage_reporter(url: str, tenant: str, key: str) -> UsageReporter:
    """Return a reporter for the operators' listener at `url`.

    Raises:
        BulkStopped: the URL is invalid, the tenant is missing, or the key cannot be sent in a
            header.
    """
    if not _is_base(url):
        raise BulkStopped("--usage-url must be an http or https URL with only a host and a port")
    if not key or key != key.strip() or not key.isprintable():
        raise BulkStopped("--usage-key-file is empty, or has characters that a key cannot have")
    if not tenant:
        raise BulkStopped("--usage-tenant is missing; give the tenant to bill")
    return UsageReporter(url, tenant=tenant, key=key)


def _is_base(url: str) -> bool:
    """Return whether a URL is valid and has no user name, query or fragment."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_plain = not (parts.username or parts.password or parts.query or parts.fragment)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and has_port and is_plain


def reported(job: str, manifest: Manifest, usage: BulkUsage, tenant: str) -> dict[str, Any]:
    """Return the body of a usage report; repeated rows count as `collapsed`."""
    return {
        "id": job,
        "tenant": tenant,
        "model": manifest.options.model,
        "task": str(manifest.options.task),
        "revision": manifest.revision,
        "hit": usage.hit,
        "collapsed": manifest.rows - manifest.failed_rows - usage.hit - usage.computed,
        "computed": usage.computed,
        "failed": manifest.failed_rows,
        "rows": usage.rows,
        "tokens": usage.tokens,
    }


def _detail(error: HTTPError) -> str:
    try:
        return msgspec.json.decode(error.read(_MAX_BYTES), type=_Problem).detail or error.reason
    except (OSError, HTTPException, msgspec.DecodeError, UnicodeDecodeError):
        return error.reason
