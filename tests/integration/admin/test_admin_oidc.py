"""Operators with tokens of an identity provider, which is an HTTP server of this test."""

import base64
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from joserfc import jws, jwt
from joserfc.jwk import ECKey, OctKey, RSAKey
from redis.asyncio import Redis

from sluicegate.gateway.admin.identity_provider import open_identity_provider
from sluicegate.gateway.admin.oidc import OidcAuthenticator, open_oidc, parse_roles
from sluicegate.gateway.errors import AuthenticationFailed, ConfigurationError
from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.operators import Operator, Role
from sluicegate.gateway.settings import Settings
from tests.support.admin import client_of, refused
from tests.support.issuer import EC, RSA, Issuer

pytestmark = pytest.mark.anyio
_AUDIENCE = "sluicegate"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture
def own(issuer: Issuer) -> Settings:
    return Settings(oidc_issuer=issuer.url, oidc_audience=_AUDIENCE)


@pytest.fixture
async def oidc(own: Settings) -> AsyncIterator[OidcAuthenticator]:
    async with open_oidc(own) as opened:
        yield opened


def token(
    issuer: Issuer,
    key: RSAKey | ECKey | OctKey = RSA,
    *,
    algorithm: str = "RS256",
    kid: str | None = None,
    **changed: Any,
) -> str:
    """Return a token of Alice with changed claims; a claim of `None` is left out."""
    now = int(time.time())  # noqa: TID251 - the gateway's clock is the real one here
    claims = {"iss": issuer.url, "aud": _AUDIENCE, "sub": "alice", "iat": now, "exp": now + 300}
    claims |= {"roles": ["viewer"]} | changed
    given = {name: value for name, value in claims.items() if value is not None}
    header = {"alg": algorithm, "kid": key.kid if kid is None else kid}
    return jwt.encode(header, given, key, algorithms=[algorithm])


async def test_tokens_by_either_algorithm_name_an_operator(
    oidc: OidcAuthenticator, issuer: Issuer
) -> None:
    alice = Operator("oidc:alice", frozenset({Role.VIEWER}))

    assert await oidc.find(token(issuer)) == alice
    assert await oidc.find(token(issuer, EC, algorithm="ES256")) == alice
    assert await oidc.find(token(issuer, aud=["other", _AUDIENCE])) == alice
    assert issuer.reads == 1


def _unsigned(header: str) -> str:
    """Return what has the form of a token, with a text as its header."""
    return f"{base64.urlsafe_b64encode(header.encode()).decode().rstrip('=')}.e30.eA"


@pytest.mark.parametrize(
    "text",
    [
        *("", "a.b.c", "op-abc", "a.b", "ü.b.c", "." * 20_000),
        *(_unsigned(header) for header in ('["alg"]', '"alg"', "[[[", "1")),
    ],
)
async def test_what_is_no_token_is_nobodys(oidc: OidcAuthenticator, text: str) -> None:
    assert await oidc.find(text) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"aud": "another"}, "not valid for this gateway"),
        ({"aud": None}, "not valid for this gateway"),
        ({"iss": "https://evil.example"}, "not valid for this gateway"),
        ({"exp": 1}, "has expired"),
        ({"exp": None}, "not valid for this gateway"),
        ({"nbf": 32_503_680_000}, "not valid for this gateway"),
        ({"iat": 32_503_680_000}, "not valid for this gateway"),
        ({"sub": None}, "not valid for this gateway"),
        ({"sub": "a\nb"}, "cannot name an operator"),
        ({"sub": "x" * 201}, "cannot name an operator"),
    ],
)
async def test_a_token_that_is_not_valid_is_refused_with_the_reason(
    oidc: OidcAuthenticator, issuer: Issuer, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        await oidc.find(token(issuer, **changed))


async def test_clocks_may_differ_by_thirty_seconds(oidc: OidcAuthenticator, issuer: Issuer) -> None:
    now = int(time.time())  # noqa: TID251 - as above

    assert await oidc.find(token(issuer, exp=now - 20, iat=now + 20)) is not None
    with pytest.raises(AuthenticationFailed, match="has expired"):
        await oidc.find(token(issuer, exp=now - 40))


async def test_a_token_that_the_issuer_has_not_signed_is_refused(
    oidc: OidcAuthenticator, issuer: Issuer
) -> None:
    """Also one signed by what is public, as a secret, and one that is not signed."""
    forged = ECKey.generate_key("P-256", {"kid": "ec-1"})
    public = OctKey.import_key("what everybody may know, as a secret", {"kid": "rsa-1"})
    head, body, _ = token(issuer).split(".")

    for bad, reason in (
        (token(issuer, forged, algorithm="ES256"), "signature"),
        (f"{head}.{body}.", "signature"),
        (f"{head}.{body}.AAAA", "signature"),
        (token(issuer, public, algorithm="HS256"), "RS256 or ES256"),
        (token(issuer, RSA, algorithm="RS512"), "RS256 or ES256"),
        (token(issuer, EC, algorithm="ES256", kid="rsa-1"), "does not have the key"),
    ):
        with pytest.raises(AuthenticationFailed, match=reason):
            await oidc.find(bad)


@pytest.mark.parametrize("payload", ["[" * 5_000, "[]", "7", '"x"', "{"])
async def test_a_signed_text_that_is_no_set_of_claims_is_refused(
    oidc: OidcAuthenticator, payload: str
) -> None:
    signed = jws.serialize_compact({"alg": "ES256", "kid": "ec-1"}, payload, EC)

    with pytest.raises(AuthenticationFailed):
        await oidc.find(signed)


async def test_a_header_that_the_library_trips_over_is_refused(oidc: OidcAuthenticator) -> None:
    with pytest.raises(AuthenticationFailed):
        await oidc.find(_unsigned('{"alg": "ES256", "kid": "ec-1", "crit": 5}'))


async def test_roles_are_found_inside_other_claims_and_translated(issuer: Issuer) -> None:
    settings = Settings(
        oidc_issuer=issuer.url,
        oidc_audience=_AUDIENCE,
        oidc_jwks_url=f"{issuer.url}/keys",
        oidc_name_claim="email",
        oidc_roles_claim="realm_access.roles",
        oidc_roles="platform=operator finance=billing",
    )
    nested = {"roles": ["platform", "finance", "admin", 7]}
    async with open_oidc(settings) as oidc:
        named = await oidc.find(token(issuer, email="a@example.com", realm_access=nested))
        nothing = await oidc.find(token(issuer, realm_access="none"))

    assert named == Operator("oidc:a@example.com", frozenset({Role.OPERATOR, Role.BILLING}))
    assert nothing == Operator("oidc:alice", frozenset())


async def test_a_claim_of_roles_may_have_dots_in_its_name(issuer: Issuer) -> None:
    """Providers prefix claims of their customers with a URL."""
    settings = Settings(
        oidc_issuer=issuer.url,
        oidc_audience=_AUDIENCE,
        oidc_roles_claim="https://acme.example/roles",
    )
    async with open_oidc(settings) as oidc:
        changed: dict[str, Any] = {"https://acme.example/roles": ["operator"]}
        found = await oidc.find(token(issuer, roles=None, **changed))

    assert found == Operator("oidc:alice", frozenset({Role.OPERATOR}))


async def test_a_token_is_used_on_the_listener_and_named_in_the_audit(
    own: Settings, settings: Settings, redis: Redis, ledger: Ledger, issuer: Issuer
) -> None:
    async with (
        open_oidc(own) as oidc,
        client_of(settings, redis, ledger, authenticators=[oidc]) as client,
    ):
        client.headers["authorization"] = f"Bearer {token(issuer, roles='operator viewer')}"
        made = await client.post("/admin/tenants", json={"id": "acme"})
        audit = await client.get("/admin/audit")
        denied = await client.get("/admin/operators")
        client.headers["authorization"] = f"Bearer {token(issuer, exp=1)}"
        late = await client.get("/admin/tenants")
        ready = await client.get("/health/ready")

    assert (made.status_code, ready.status_code) == (201, 200)
    assert [entry["actor"] for entry in audit.json()["entries"]] == ["oidc:alice"]
    refused(denied, 403, "permission_denied")
    assert refused(late, 401, "authentication_failed")["detail"].startswith("the token has expired")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"oidc_audience": ""}, "SLUICEGATE_OIDC_AUDIENCE"),
        ({"oidc_issuer": "http://idp.example"}, "SLUICEGATE_OIDC_ISSUER` must begin with"),
        ({"oidc_issuer": "https://[::1"}, "SLUICEGATE_OIDC_ISSUER` must begin with"),
        ({"oidc_jwks_url": "ftp://idp.example"}, "SLUICEGATE_OIDC_JWKS_URL` must begin with"),
        ({"oidc_roles": "platform"}, "SLUICEGATE_OIDC_ROLES"),
        ({"oidc_roles": "platform=astronaut"}, "SLUICEGATE_OIDC_ROLES"),
        ({"oidc_ca": "/nowhere.pem"}, "SLUICEGATE_OIDC_CA"),
    ],
)
async def test_settings_that_do_not_fit_are_refused(
    own: Settings, changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        async with open_identity_provider(msgspec.structs.replace(own, **changed)):
            pass


def test_without_pairs_values_are_names_of_roles() -> None:
    assert parse_roles("")["admin"] is Role.ADMIN
    assert parse_roles("a=b=viewer") == {"a=b": Role.VIEWER}
