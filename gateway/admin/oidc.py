"""Authenticates operators by the tokens of an identity provider (OpenID Connect)."""

import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from functools import reduce
from typing import Any

import httpx
from joserfc import jws, jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError, MissingClaimError

from sluicegate.gateway.admin.issuer_keys import ALGORITHMS, IssuerKeys
from sluicegate.gateway.errors import AuthenticationFailed, ConfigurationError
from sluicegate.gateway.operations.operators import Operator, Role
from sluicegate.gateway.settings import Settings

PREFIX = "oidc:"
_LEEWAY = 30
"""Seconds by which the issuer's clock may differ from the gateway's."""
_MAX_BYTES = 16 * 1024
_MAX_NAME = 200
_SEGMENTS = 3


class OidcAuthenticator:
    """Checks a token's signature, issuer, audience and times, and reads the operator's roles.

    `roles` maps values of the claim `roles_claim` to roles.
    """

    def __init__(
        self,
        *,
        keys: IssuerKeys,
        issuer: str,
        audience: str,
        name_claim: str,
        roles_claim: str,
        roles: Mapping[str, Role],
    ) -> None:
        self._keys = keys
        self._name_claim = name_claim
        self._roles_claim = roles_claim
        self._roles = roles
        self._claims = jwt.JWTClaimsRegistry(
            now=lambda: time.time_ns() // 1_000_000_000,
            leeway=_LEEWAY,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        )

    async def find(self, token: str) -> Operator | None:
        """Return the operator of a token, or `None` if `token` is not a JSON Web Token.

        Raises:
            AuthenticationFailed: the token is not valid. The message says why.
            DependencyUnavailable: the issuer's keys cannot be read.
        """
        if token.count(".") != _SEGMENTS - 1 or len(token) > _MAX_BYTES or not token.isascii():
            return None
        try:
            header: Any = jws.extract_compact(token.encode()).protected
        except (JoseError, ValueError):
            return None
        if not isinstance(header, dict):  # the library accepts any value that contains `alg`
            return None
        algorithm, kid = str(header.get("alg", "")), str(header.get("kid", ""))
        if algorithm not in ALGORITHMS:
            raise AuthenticationFailed(
                f"the token is not signed with {' or '.join(ALGORITHMS)}; get one that is"
            )
        key = await self._keys.find(kid, algorithm)
        if key is None:
            raise AuthenticationFailed(
                "the identity provider does not have the key that the token names; get a new token"
            )
        try:
            claims = jwt.decode(token, key, algorithms=[algorithm]).claims
            self._claims.validate(claims)
        except Exception as error:  # odd headers and claims raise many kinds of errors
            raise AuthenticationFailed(_explain(error)) from error
        return Operator(PREFIX + self._name(claims), self._roles_of(claims))

    def _name(self, claims: Mapping[str, Any]) -> str:
        name = claims.get(self._name_claim) or claims["sub"]
        if not isinstance(name, str) or len(name) > _MAX_NAME or not name.isprintable():
            raise AuthenticationFailed(
                f"the claim `{self._name_claim}` of the token cannot name an operator"
            )
        return name

    def _roles_of(self, claims: Mapping[str, Any]) -> frozenset[Role]:
        found = claims.get(self._roles_claim)  # not split at dots, because the name may be a URL
        if found is None:
            found = reduce(_step, self._roles_claim.split("."), claims)
        values = found.split() if isinstance(found, str) else found
        if not isinstance(values, list):
            return frozenset()
        named = (self._roles.get(value) for value in values if isinstance(value, str))
        return frozenset(role for role in named if role is not None)


@contextlib.asynccontextmanager
async def open_oidc(settings: Settings) -> AsyncIterator[OidcAuthenticator]:
    """Open the authenticator for the issuer in `settings`.

    Raises:
        ConfigurationError: the file of certificate authorities cannot be used.
    """
    try:
        tls = ssl.create_default_context(
            cafile=None if settings.oidc_ca is None else str(settings.oidc_ca)
        )
    except OSError as error:
        raise ConfigurationError(f"`SLUICEGATE_OIDC_CA` cannot be used: {error}") from error
    async with (
        httpx.AsyncClient(verify=tls, timeout=None, trust_env=False) as client,  # noqa: S113 - bounded as a whole
        IssuerKeys(issuer=settings.oidc_issuer, url=settings.oidc_jwks_url, client=client) as keys,
    ):
        yield OidcAuthenticator(
            keys=keys,
            issuer=settings.oidc_issuer,
            audience=settings.oidc_audience,
            name_claim=settings.oidc_name_claim,
            roles_claim=settings.oidc_roles_claim,
            roles=parse_roles(settings.oidc_roles),
        )


def parse_roles(text: str) -> dict[str, Role]:
    """Parse `value=role` pairs, which are separated by spaces.

    A pair maps a value of the token's role claim to a role. If there are no pairs, the values of
    the claim are the roles' names.

    Raises:
        ConfigurationError: a pair is invalid.
    """
    found = {}
    for pair in text.split():
        value, _, role = pair.rpartition("=")
        if not value or role not in set(Role):
            raise ConfigurationError(
                "`SLUICEGATE_OIDC_ROLES` must contain pairs such as `platform-team=operator`; the"
                f" roles are {', '.join(Role)}"
            )
        found[value] = Role(role)
    return found or {role.value: role for role in Role}


def _step(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _explain(error: Exception) -> str:
    if isinstance(error, ExpiredTokenError):
        return "the token has expired; get a new one"
    if isinstance(error, MissingClaimError | InvalidClaimError):
        # The message has the names of claims, which are not secret. It does not have their values.
        return f"the token is not valid for this gateway: {error.description or error}"
    return "the token's signature is not valid"
