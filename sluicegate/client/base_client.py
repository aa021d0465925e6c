"""Implements what both clients share: address, key, options, and the signatures of methods."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import httpx

from sluicegate.client.options import Options
from sluicegate.client.settings import default_key, default_url

M = TypeVar("M", bound=Callable[..., Any])


class BaseClient:
    """Builds the requests of a client.

    If `is_own` is true, the client must close `http`.
    """

    def __init__(
        self,
        http: httpx.Client | httpx.AsyncClient,
        *,
        is_own: bool,
        url: str,
        key: str,
        options: Options | None,
    ) -> None:
        self.url = (url or default_url()).rstrip("/")
        self.options = options or Options()
        self._key = key or default_key()
        self._is_own = is_own
        self._build_request = http.build_request
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("`url` must begin with `http://` or `https://`")
        if not (self._key.isascii() and self._key.isprintable() and " " not in self._key):
            # Do not show the key, because tracebacks are logged.
            raise ValueError("`key` must be printable ASCII characters without spaces or newlines")

    def _request(
        self, method: str, path: str, headers: httpx.Headers, **parts: Any
    ) -> httpx.Request:
        if self._key:
            headers = headers.copy()
            headers["Authorization"] = f"Bearer {self._key}"
        return self._build_request(method, self.url + path, headers=headers, **parts)


def has_certificate(url: str) -> bool:
    """Return whether the gateway at `url` uses TLS.

    If it does not, httpx need not load certificate authorities. Loading them takes longer than a
    hundred requests.
    """
    return not (url or default_url()).startswith("http://")


def described(method: M, make: Callable[..., Any]) -> M:
    """Give `method` the name, docstring and parameters of the route `make`."""
    own = inspect.signature(make)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    taken = {
        "__name__": make.__name__,
        "__doc__": make.__doc__,
        "__signature__": own.replace(
            parameters=[first, *own.parameters.values()], return_annotation=inspect.Signature.empty
        ),
    }
    for name, value in taken.items():
        setattr(method, name, value)
    return method
