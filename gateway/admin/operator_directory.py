"""Finds the operator of a bearer token: a key, or a token of an identity provider."""

import hmac
from collections.abc import Sequence
from typing import Protocol

from gateway.admin.operators import Operator, Role


class OperatorAuthenticator(Protocol):
    """Knows the operators of some tokens."""

    async def find(self, token: str) -> Operator | None:
        """Return the operator of `token`, `None` if it is nobody's; waits 2 s at most.

        Raises:
            AuthenticationFailed: it is not valid any more, or not for this gateway.
            DependencyUnavailable: whose it is cannot be found out now.
        """
        ...


class OperatorDirectory:
    """Compares a token with the keys of the environment, and then asks each of `authenticators`."""

    def __init__(
        self,
        *,
        admin_keys: Sequence[str],
        metrics_keys: Sequence[str] = (),
        authenticators: Sequence[OperatorAuthenticator] = (),
    ) -> None:
        # Without a key nobody is meant: an empty one must not let everybody in.
        self._configured = [
            (key.encode(), Operator(role.value, frozenset({role})))
            for keys, role in ((admin_keys, Role.ADMIN), (metrics_keys, Role.METRICS))
            for key in filter(None, keys)
        ]
        self._authenticators = authenticators

    async def authenticate(self, token: str) -> Operator | None:
        """Return the operator of `token`, `None` if it is nobody's; waits 2 s at most.

        Raises:
            AuthenticationFailed: it is not valid any more, or not for this gateway.
            DependencyUnavailable: whose it is cannot be found out now.
        """
        sent = token.encode("utf-8", "surrogateescape")
        for key, operator in self._configured:
            if hmac.compare_digest(sent, key):
                return operator
        for one in self._authenticators:
            if (found := await one.find(token)) is not None:
                return found
        return None
