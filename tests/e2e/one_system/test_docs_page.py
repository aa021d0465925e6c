"""Tests the documentation page in a real browser: all operations, no foreign host."""

from collections.abc import AsyncIterator

import pytest

from testing.system import System
from tests.support.browser import CHROMIUM, Page, open_page
from tests.support.documents import documents

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.system,
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: `make install-system`"
    ),
]
# Enters a key, opens the form of a route, sends what it holds, and waits for the answer.
_TRY = """(key, path) => {
  const found = find => new Promise(resolve => {
    const look = () => find() ? resolve(find()) : setTimeout(look, 20);
    look();
  });
  const button = (root, text) => [...root.querySelectorAll('button')].find(
    one => one.textContent.trim().startsWith(text));
  const form = () => document.querySelector('[role=dialog]');
  location.hash = '#tag/inference/POST' + path;
  return found(() => document.querySelector('input[placeholder=Token]')).then(field => {
    field.value = key;
    field.dispatchEvent(new Event('input', {bubbles: true}));
    field.dispatchEvent(new Event('change', {bubbles: true}));
    return found(() => button(document, `Test Request(post ${path})`));
  }).then(open => {
    open.click();
    return found(() => form() && button(form(), 'Send'));
  }).then(send => {
    const sent = [...form().querySelectorAll('input[type=checkbox]')].filter(one => one.checked);
    send.click();
    return found(() => /HTTP_STATUS_OK|200 OK/.test(form().textContent)).then(() => {
      const text = form().textContent;
      button(form(), 'Close Client').click();
      return {text, sent: sent.map(one => one.getAttribute('aria-label').split(' ')[1])};
    });
  });
}"""
_GO = "location.hash = '#tag/{}'"
_LAST = documents()["customers"]["tags"][-1]["x-displayName"]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def page(
    anyio_backend: str, system: System, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Page]:
    """The page, drawn to its end once: that takes a browser most of a test's time."""
    async with open_page(tmp_path_factory.mktemp("browser")) as opened:
        await opened.open(f"{system.url}/docs")
        await opened.text_with(_LAST)
        yield opened


async def test_the_page_shows_the_operations_and_their_examples(page: Page) -> None:
    text = await page.text_with(_LAST)
    for shown in ("/v1/classify", "/v1/rerank", "/v1/infer/{model}", "Bearer Token"):
        assert shown in text

    await page.evaluate(_GO.format("inference/POST/v1/infer/{model}"))
    assert "charged twice" in await page.text_with("Run a model's own algorithm")
    picture = await page.screenshot()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000  # an empty page of that size has 6 000 bytes


async def test_the_page_asks_its_own_host_only_and_breaks_no_policy(
    page: Page, system: System
) -> None:
    asked = [url for url in page.requested if not url.startswith(("data:", "blob:"))]

    assert {f"{system.url}/docs", f"{system.url}/openapi.json"} <= set(asked)
    assert [url for url in asked if not url.startswith(f"{system.url}/")] == []
    assert page.complaints == []


async def test_the_policy_stops_what_is_asked_of_another_host(page: Page, system: System) -> None:
    outcome = await page.evaluate(f"fetch('{system.admin_url}/health/live').catch(e => e.name)")

    assert outcome == "TypeError"
    assert any("Content Security Policy" in complaint for complaint in page.complaints)


async def test_the_page_shows_how_to_call_a_route_in_each_language(page: Page) -> None:
    await page.evaluate(_GO.format("inference/POST/v1/classify"))
    text = await page.text_with("curl -s")

    assert "$SLUICEGATE_URL" in text


async def test_a_reader_with_a_key_tries_a_route(page: Page, system: System) -> None:
    answer = await page.evaluate(f"({_TRY})('{system.key}', '/v1/classify')")
    vector = await page.evaluate(f"({_TRY})('{system.key}', '/v1/embed')")

    assert "positive" in answer["text"]
    assert "embedding" in vector["text"]


async def test_the_page_sends_no_header_that_the_reader_did_not_choose(
    page: Page, system: System
) -> None:
    answer = await page.evaluate(f"({_TRY})('{system.key}', '/v1/classify')")

    assert answer["sent"] == ["accept", "content-type"]
