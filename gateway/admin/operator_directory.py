"""Finds the operator of a bearer token: an operator's key or an identity provider's token."""

import hmac
from collections.abc import Sequence
from typing import Protocol

from sluicegate.gateway.operations.operators import Operator, Role


class OperatorAuthenticator(Protocol):
    """Authenticates one kind of token."""

    async def find(self, token: str) -> Operator | None:
        """Return the operator of `token`, or `None` if it is unknown. Waits at most 2 s.

        Raises:
            AuthenticationFailed: the token has expired, or is not for this gateway.
            DependencyUnavailable: the token cannot be checked now.
        """
        ...


class OperatorDirectory:
    """Finds the operator of a token.

    It compares the token with the keys in the settings, and then asks each of `authenticators`.
    """

    def __init__(
        self,
        *,
        admin_keys: Sequence[str],
        metrics_keys: Sequence[str] = (),
        authenticators: Sequence[OperatorAuthenticator] = (),
    ) -> None:
        # An empty key in the settings means no key. It must not match an empty token.
        self._configured = [
            (key.encode(), Operator(role.value, frozenset({role})))
            for keys, role in ((admin_keys, Role.ADMIN), (metrics_keys, Role.METRICS))
            for key in filter(None, keys)
        ]
        self._authenticators = authenticators

    async def authenticate(self, token: str) -> Operator | None:
        """Return the operator of `token`, or `None` if it is unknown. Waits at most 2 s.

        Raises:
            AuthenticationFailed: the token has expired, or is not for this gateway.
            DependencyUnavailable: the token cannot be checked now.
        """
        sent = token.encode("utf-8", "surrogateescape")
        for key, operator in self._configured:
            if hmac.compare_digest(sent, key):
                return operator
        for one in self._authenticators:
            if (found := await one.find(token)) is not None:
                return found
        return None
