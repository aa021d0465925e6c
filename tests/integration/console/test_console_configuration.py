"""The console's page of the configuration: differences, dry runs, publishing, rollback."""

import re

import httpx
import pytest

from sluicegate.gateway.ledger.ledger import Ledger
from sluicegate.gateway.operations.publishing import Publisher
from sluicegate.gateway.runtime.control import Control
from sluicegate.gateway.settings import Settings

pytestmark = pytest.mark.anyio
_TEXT = "models:\n  m: {cache_ttl: %d}\n"
_PAGE = "/console/configuration"


@pytest.fixture
async def published(
    settings: Settings, redis: "object", ledger: Ledger, operator: httpx.AsyncClient
) -> httpx.AsyncClient:
    """The console of a gateway with two generations."""
    control = Control(redis)  # type: ignore[arg-type]  # the fixture's type
    publisher = Publisher(
        control=control, ledger=ledger, settings=settings, clock=lambda: 1e9, workers_timeout=0
    )
    for ttl in (1, 2):
        await publisher.put(_TEXT % ttl, if_match="", author="kim")
    return operator


def tag_of(page: httpx.Response) -> str:
    found = re.search(r'name="tag" value="([^"]*)"', page.text)
    assert found is not None
    return found[1].replace("&#34;", '"')


async def test_two_generations_are_compared(published: httpx.AsyncClient) -> None:
    page = (await published.get(_PAGE)).text
    found = (await published.get(f"{_PAGE}/difference?before=1&after=2")).text
    none = await published.get(f"{_PAGE}/difference?before=1&after=9")

    assert page.count("Roll back to generation") == 1
    assert "models.m.cache_ttl" in found
    assert "1 line added, 1 removed" in found
    assert re.findall(r"(?:added|removed): </span>[+-] +(.*?)</span>", found) == [
        "cache_ttl: 1.0",
        "cache_ttl: 2.0",
    ]
    assert none.status_code == 404


async def test_a_dry_run_shows_what_would_change_and_changes_nothing(
    published: httpx.AsyncClient,
) -> None:
    tag = tag_of(await published.get(_PAGE))

    good = await published.post(f"{_PAGE}/dry-run", data={"text": _TEXT % 3, "tag": tag})
    bad = await published.post(f"{_PAGE}/dry-run", data={"text": "modls: {}", "tag": tag})
    after = tag_of(await published.get(_PAGE))

    assert "cache_ttl: 3.0" in good.text
    assert 'role="alert"' in bad.text
    assert "modls" in bad.text
    assert after == tag


async def test_a_document_is_published_unless_another_one_was(
    published: httpx.AsyncClient, ledger: Ledger
) -> None:
    tag = tag_of(await published.get(_PAGE))

    done = await published.post(
        f"{_PAGE}/publish", data={"text": "models:\r\n  m: {cache_ttl: 3}\r\n", "tag": tag}
    )
    late = await published.post(f"{_PAGE}/publish", data={"text": _TEXT % 4, "tag": tag})
    untagged = await published.post(f"{_PAGE}/publish", data={"text": _TEXT % 4})
    wrong = await published.post(
        f"{_PAGE}/publish", data={"text": "modls: {}", "tag": tag_of(done)}
    )

    assert "Generation 3 is published" in done.text
    assert (late.status_code, untagged.status_code) == (412, 412)
    assert "Not published." in wrong.text
    assert "modls: {}</textarea>" in wrong.text  # nothing of it is lost
    newest = ledger.audit.entries(limit=1)[0]
    assert (newest.actor, newest.action) == ("admin", "config.publish")


async def test_a_rollback_publishes_an_earlier_document(published: httpx.AsyncClient) -> None:
    done = await published.post(f"{_PAGE}/rollback", data={"generation": "1"})
    wrong = await published.post(f"{_PAGE}/rollback", data={"generation": "x"})

    assert "Generation 3 is published" in done.text
    assert "rollback to generation 1" in done.text
    assert wrong.status_code == 400
