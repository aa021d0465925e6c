"""Tests the documentation page in a real browser: all operations, no foreign host."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loadtests.harness.browser import CHROMIUM, Page, open_page
from loadtests.harness.system import System

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.system,
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: `make install-system`"
    ),
]
# Enters a key, presses TRY beside a route, and waits for the answer that the page then shows.
_TRY = """(key, path) => {
  const all = (root, wanted) => [...root.querySelectorAll(wanted),
    ...[...root.querySelectorAll('*')].flatMap(
      one => one.shadowRoot ? all(one.shadowRoot, wanted) : [])];
  const button = (root, text) => all(root, 'button').find(one => one.textContent.trim() === text);
  const found = find => new Promise(resolve => {
    const look = () => find() ? resolve(find()) : setTimeout(look, 20);
    look();
  });
  const go = place => document.querySelector('rapi-doc').scrollToPath(place);
  go('auth');
  return found(() => all(document, 'input.api-key-input')[0]).then(field => {
    field.value = key;
    (button(document, 'SET') || button(document, 'UPDATE')).click();
    go('post-' + path);
    return found(() => all(document, 'api-request').find(
      one => one.path === path && button(one.shadowRoot, 'TRY')));
  }).then(request => {
    button(request.shadowRoot, 'TRY').click();
    return found(() => (request.responseText || '').includes('{') && request.responseText);
  });
}"""
_GO = "document.querySelector('rapi-doc').scrollToPath('{}')"
_LAST = "Whether requests can be answered"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def system(light_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system of few models: the page shows the same of any."""
    data = tmp_path_factory.mktemp("docs") / "data"
    with System(data, models=light_models) as running:
        yield running


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
    for shown in (
        *("Label texts with a trained classifier", "Order documents by a query"),
        *("Run a model's own algorithm", "The calling tenant's usage and cost"),
    ):
        assert shown in text

    await page.evaluate(_GO.format("auth"))
    await page.text_with("No API key applied")
    await page.evaluate(_GO.format("post-/v1/infer/{model}".replace("{", "-").replace("}", "-")))
    assert "charged twice" in await page.text_with("/v1/infer/{model}")
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
    await page.evaluate(_GO.format("post-/v1/classify"))
    text = await page.text_with("const response = await fetch")

    for shown in ("curl Python JavaScript", "curl -s", "from sluicegate import Sluicegate"):
        assert shown in text


async def test_a_reader_with_a_key_tries_a_route(page: Page, system: System) -> None:
    answer = await page.evaluate(f"({_TRY})('{system.key}', '/v1/classify')")
    vector = await page.evaluate(f"({_TRY})('{system.key}', '/v1/embed')")

    assert "positive" in answer
    assert "embedding" in vector
