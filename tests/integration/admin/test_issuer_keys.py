"""The keys of an identity provider, which is an HTTP server of this test."""

import asyncio
import gzip
from collections.abc import Iterator, Sequence

import httpx
import msgspec
import pytest
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, RSAKey

from sluicegate.gateway.admin.issuer_keys import IssuerKeys
from sluicegate.gateway.errors import DependencyUnavailable
from tests.support.issuer import EC, Issuer

pytestmark = pytest.mark.anyio
_OTHER = ECKey.generate_key("P-256", {"kid": "ec-2"})
_FAULTY: dict[str, Sequence[RSAKey | ECKey | OctKey]] = {
    "no keys": [],
    "curve": [ECKey.generate_key("P-384", {"kid": "rsa-1"})],
    "huge": [ECKey.generate_key("P-256", {"kid": "x" * 300_000})],
}


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


async def test_a_new_key_of_the_issuer_is_read_when_a_token_names_it(issuer: Issuer) -> None:
    now = [0.0]
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url="", client=client, monotonic=lambda: now[0])
        async with keys:
            assert await keys.find("rsa-1", "RS256") is not None
            first = issuer.reads
            issuer.keys = [_OTHER]

            assert await keys.find("ec-2", "ES256") is None, "not so soon"
            assert issuer.reads == first
            now[0] += 10.0
            assert await keys.find("ec-2", "ES256") is not None
            assert await keys.find("rsa-1", "RS256") is None, "it is the issuer's no more"
            assert issuer.reads == first + 1


async def test_tokens_that_come_during_a_read_cause_no_other(issuer: Issuer) -> None:
    """Else a stranger could have the keys read without a pause."""
    asked, go_on = asyncio.Event(), asyncio.Event()
    reads = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal reads
        reads += 1
        asked.set()
        await go_on.wait()
        return httpx.Response(200, json={"keys": [EC.as_dict(private=False)]})

    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport) as client:
        keys = IssuerKeys(issuer=issuer.url, url=f"{issuer.url}/keys", client=client)
        async with keys:
            await asked.wait()
            finding = [asyncio.create_task(keys.find(f"k{n}", "ES256")) for n in range(3)]
            for _ in range(5):
                await asyncio.sleep(0)
            go_on.set()
            found = await asyncio.gather(*finding)
            for _ in range(20):
                await asyncio.sleep(0)

    assert found == [None] * 3
    assert reads == 1


@pytest.mark.parametrize(
    "odd",
    [
        *(None, 7, "text", [1]),
        {"kty": "EC", "crv": "P-256", "kid": "odd", "alg": {}},
        {"kty": "EC", "crv": "P-256", "kid": "odd", "alg": ["ES256"], "use": {}},
        {"kty": ["RSA"], "n": 7},
    ],
)
async def test_an_odd_key_does_not_hide_the_others(issuer: Issuer, odd: object) -> None:
    issuer.listed = {"keys": [odd, EC.as_dict(private=False)]}
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url="", client=client)

        await keys.refresh()

        assert await keys.find("ec-1", "ES256") is not None


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"keys": [' + b"[" * 100_000, b"\xff", b""])
async def test_an_answer_that_cannot_be_decoded_leaves_the_last_keys(
    issuer: Issuer, body: bytes
) -> None:
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url="", client=client)
        await keys.refresh()
        issuer.listed = body

        await keys.refresh()

        assert await keys.find("ec-1", "ES256") is not None
        with pytest.raises(DependencyUnavailable):
            await keys.find("ec-2", "ES256")


async def test_an_answer_is_not_inflated(issuer: Issuer) -> None:
    """A few bytes could become very many before they are counted."""
    listed = msgspec.json.encode({"keys": [EC.as_dict(private=False)]})
    issuer.listed, issuer.encoding = gzip.compress(listed), "gzip"
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url=f"{issuer.url}/keys", client=client)

        await keys.refresh()

        with pytest.raises(DependencyUnavailable):
            await keys.find("ec-1", "ES256")


async def test_keys_stay_for_a_day_while_the_issuer_is_away(issuer: Issuer) -> None:
    now = [0.0]
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url="", client=client, monotonic=lambda: now[0])
        await keys.refresh()
        issuer.is_broken = True
        now[0] += 24 * 3600.0
        await keys.refresh()

        assert await keys.find("rsa-1", "RS256") is not None
        now[0] += 1.0
        with pytest.raises(DependencyUnavailable):
            await keys.find("rsa-1", "RS256")


@pytest.mark.parametrize("fault", ["broken", "other issuer", "no keys", "small", "curve", "huge"])
async def test_what_is_no_set_of_keys_is_not_believed(issuer: Issuer, fault: str) -> None:
    issuer.is_broken = fault == "broken"
    issuer.name = "https://other.example" if fault == "other issuer" else issuer.url
    issuer.keys = list(_FAULTY.get(fault, issuer.keys))
    if fault == "small":
        with pytest.warns(SecurityWarning):
            issuer.keys = [RSAKey.generate_key(1024, {"kid": "rsa-1"})]
    async with httpx.AsyncClient() as client:
        keys = IssuerKeys(issuer=issuer.url, url="", client=client)

        await keys.refresh()

        with pytest.raises(DependencyUnavailable):
            await keys.find("rsa-1", "RS256")


async def test_many_tokens_with_unknown_keys_cost_one_read(issuer: Issuer) -> None:
    async with (
        httpx.AsyncClient() as client,
        IssuerKeys(issuer=issuer.url, url="", client=client) as keys,
    ):
        found = await asyncio.gather(*(keys.find(f"k{n}", "RS256") for n in range(50)))

    assert found == [None] * 50
    assert issuer.reads <= 2
