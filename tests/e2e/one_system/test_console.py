"""Uses the console in a real browser: each page and action, no foreign host, accessibility."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sluicegate.gateway.console.pages import PAGES
from sluicegate.gateway.ledger.ledger import Ledger
from testing.system import ADMIN_KEY, System
from tests.support.browser import CHROMIUM, Page, open_page

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.system,
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"{CHROMIUM} is missing: `make install-system`"
    ),
]
_AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text()
# What axe-core finds serious, each with the first element that it is about.
_FAULTS = """axe.run(document, {resultTypes: ['violations']}).then(found => found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact))
  .map(one => `${one.id}: ${one.help}: ${one.nodes[0].html}`))"""
# Waits for an element with a text, and presses it.
_PRESS = """((where, text) => new Promise(resolve => {
  const look = () => {
    const found = [...document.querySelectorAll(where)].find(
      one => one.textContent.trim().startsWith(text) && one.offsetParent !== null);
    found ? resolve(found.click()) : setTimeout(look, 20);
  };
  look();
}))"""
# Goes to another tab, and back.
_LOOK = """Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});
document.dispatchEvent(new Event('visibilitychange'))"""
# Waits until a table that follows the state has been read again.
_READ_AGAIN = """new Promise(resolve => document.addEventListener("htmx:afterRequest",
  event => event.detail.elt.hasAttribute("data-live") && resolve()))"""
_LOG_IN = """document.querySelector('#key').value = {};
document.querySelector('form[action="/console/login"]').requestSubmit()"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def page(
    anyio_backend: str, system: System, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Page]:
    """A page whose operator has logged in."""
    async with open_page(tmp_path_factory.mktemp("browser")) as opened:
        await opened.open(f"{system.admin_url}/console")
        await opened.text_with("Operator key")
        await opened.follow(_LOG_IN.format(_quoted(ADMIN_KEY)))
        await opened.text_with("Requests per second")
        yield opened


async def press(page: Page, text: str, where: str = "button") -> None:
    """Press the button with a text."""
    await page.evaluate(f"{_PRESS}({_quoted(where)}, {_quoted(text)})")


async def follow(page: Page, text: str) -> None:
    """Press the button with a text, which leads to another page."""
    await page.follow(f"{_PRESS}('button', {_quoted(text)})")


async def enter(page: Page, field: str, text: str) -> None:
    """Enter a text into the field of that id."""
    await page.evaluate(f"document.getElementById({_quoted(field)}).value = {_quoted(text)}")


async def choose(page: Page, field: str, option: str) -> None:
    """Choose an option of the list of that id."""
    await enter(page, field, option)
    changed = "new Event('change', {bubbles: true})"
    await page.evaluate(f"document.getElementById({_quoted(field)}).dispatchEvent({changed})")


async def wait_for(page: Page, condition: str) -> None:
    """Wait until an expression is true on the page."""
    look = f"const look = () => ({condition}) ? resolve() : setTimeout(look, 20)"
    await page.evaluate(f"new Promise(resolve => {{ {look}; look(); }})")


async def confirm(page: Page) -> None:
    """Confirm what the dialog asks."""
    await press(page, "Confirm", "dialog[open] button")


async def faults(page: Page) -> list[str]:
    """Return what axe-core finds serious on a page."""
    await page.evaluate(f"{_AXE}; undefined")
    found: list[str] = await page.evaluate(_FAULTS)
    return found


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


async def test_a_wrong_key_opens_nothing(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/login")
    assert await faults(page) == []

    await page.follow(_LOG_IN.format(_quoted("wrong")))

    await page.text_with("No operator has this key")
    page.complaints.clear()  # of the status, 401


@pytest.mark.parametrize("shown", PAGES, ids=[page.title for page in PAGES])
async def test_a_page_breaks_no_policy_asks_no_other_host_and_is_accessible(
    system: System, page: Page, shown: msgspec.Struct
) -> None:
    title, path = (getattr(shown, name) for name in ("title", "path"))
    await page.open(f"{system.admin_url}{path}")
    await page.text_with(title)

    for theme in ("light", "dark"):
        await page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        assert await faults(page) == []
    wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0
    asked = [url for url in page.requested if not url.startswith("data:")]
    assert [url for url in asked if not url.startswith(f"{system.admin_url}/")] == []
    assert page.complaints == []


async def test_the_overview_follows_traffic(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console")
    assert "sentiment-small" not in await page.text_with("Requests/s")

    with system.client() as client:
        body = {"model": "sentiment-small", "input": ["fine", "fine", "bad"]}
        assert client.post("/v1/classify", json=body).status_code == 200

    await page.text_with("sentiment-small")
    await wait_for(page, "parseFloat(document.querySelector('.figures dd').textContent) > 0")


async def test_a_page_that_nobody_looks_at_holds_no_connection(system: System, page: Page) -> None:
    source = "document.getElementById('live')['htmx-internal-data'].sseEventSource"
    await page.open(f"{system.admin_url}/console")
    await wait_for(page, f"{source}.readyState === EventSource.OPEN")

    await page.evaluate(_LOOK.format("true"))
    hidden = await page.evaluate(f"{source}.source")
    await page.evaluate(_LOOK.format("false"))
    await wait_for(page, f"{source}.readyState === EventSource.OPEN")

    assert hidden is None


async def test_an_operator_drains_a_backend_and_restores_it(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/backends")

    await press(page, "Drain")
    await page.text_with("Drain eu-0 in eu?")
    await confirm(page)
    await page.text_with("eu-0 is drained")  # a worker may have it later
    assert await faults(page) == []
    await press(page, "Restore")
    await confirm(page)

    await page.text_with("eu-0 is restored")
    await page.open(f"{system.admin_url}/console")
    await page.text_with("Nothing is degraded.")


async def test_a_change_is_made_although_the_table_was_read_again_meanwhile(
    system: System, page: Page
) -> None:
    await page.open(f"{system.admin_url}/console/backends")

    await press(page, "Drain")
    await page.evaluate(_READ_AGAIN)
    await confirm(page)
    await page.text_with("eu-0 is drained")
    await press(page, "Restore")
    await confirm(page)

    await page.text_with("eu-0 is restored")


async def test_a_change_that_is_not_confirmed_is_not_made(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/backends")

    await press(page, "Drain")
    await press(page, "Cancel", "dialog[open] button")
    await press(page, "Drain")  # it is still there

    await press(page, "Cancel", "dialog[open] button")


async def test_an_operator_checks_changes_and_takes_back_a_split(
    system: System, page: Page
) -> None:
    await page.open(f"{system.admin_url}/console/models/sentiment")
    await page.text_with("Its repository")
    assert await faults(page) == []

    await press(page, "Check only")
    await page.text_with("Every backend can serve")
    await press(page, "Split")
    await confirm(page)
    await page.text_with("Operators have set")
    await press(page, "Roll back")
    await confirm(page)

    await page.text_with("Its repository")


async def test_an_operator_creates_a_tenant_with_a_key_and_revokes_it(
    system: System, page: Page
) -> None:
    await page.open(f"{system.admin_url}/console/tenants")
    await press(page, "New tenant", "summary")
    await enter(page, "new-id", "acme")
    await follow(page, "Create the tenant")
    await page.text_with("No usage in")

    await press(page, "New key", "summary")
    await enter(page, "key-name", "website")
    await press(page, "Create the key")
    await page.text_with("not shown again")
    key = await page.evaluate("document.querySelector('.secret').textContent")
    assert await faults(page) == []
    with system.client() as client:
        headers = {"authorization": f"Bearer {key}"}
        body = {"model": "sentiment", "input": "fine"}
        assert client.post("/v1/classify", json=body, headers=headers).status_code == 200
    await press(page, "Change", "#keys summary")
    await press(page, "Revoke")
    await confirm(page)

    await page.text_with("is revoked.")


async def test_usage_is_drawn(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/usage?by=tenant&span=24h")

    await page.text_with("By tenant, sorted by items")

    await wait_for(page, "document.querySelectorAll('canvas').length === 3")
    assert await faults(page) == []
    assert page.complaints == []


async def test_an_operator_checks_publishes_and_rolls_back_a_document(
    system: System, page: Page
) -> None:
    await page.open(f"{system.admin_url}/console/configuration")
    text = await page.evaluate("document.getElementById('text').value")
    with system.admin() as admin:
        live = admin.get("/admin/config").json()["generation"]

    await enter(page, "text", f"{text}\nidempotency: {{max_keys: 7}}\n")
    await press(page, "Dry run")
    await page.text_with("idempotency.max_keys")
    assert await faults(page) == []
    await press(page, "Publish")
    await confirm(page)
    await page.text_with(f"Generation {live + 1} is published")
    await press(page, "Show the difference")
    await page.text_with(f"Generation {live} to {live + 1}")
    await press(page, "Roll back")
    await confirm(page)

    await page.text_with(f"Generation {live + 2} is published")


async def test_an_operator_tries_a_request_with_a_key_for_tests(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/playground")

    await choose(page, "model", "sentiment")
    await wait_for(page, "document.getElementById('body').value.includes('sentiment')")
    await press(page, "Send")
    await page.text_with("Enter an API key")
    await press(page, "Create a test key")
    await page.text_with("A test key of the tenant playground was created")
    await press(page, "Send")

    text = await page.text_with("Trace id")
    assert "Enter an API key" not in text  # the error of before
    assert "Status 200" in text
    assert "positive" in text
    assert await faults(page) == []


async def test_an_operator_asks_a_guard_and_sees_its_findings(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/playground")
    await press(page, "Create a test key")
    await page.text_with("A test key of the tenant playground was created")

    await choose(page, "model", "guard:chat")
    await wait_for(page, "document.getElementById('task').value === 'guard'")
    await enter(page, "body", '{"input": "<img src=x> ada@example.com"}')
    await press(page, "Send")
    await page.text_with("Trace id")

    marked = await page.evaluate(
        "(({textContent, title}) => [textContent, title])(document.querySelector('#answer mark'))"
    )
    assert marked == ["ada@example.com", "contacts: EMAIL 1.00"]
    assert await page.evaluate("document.querySelector('#answer img')") is None
    assert await faults(page) == []
    await page.open(f"{system.admin_url}/console/guards")
    await page.text_with("contacts, EMAIL, 1.00, 15")
    await wait_for(page, "document.querySelectorAll('#guards canvas').length === 2")
    assert await faults(page) == []


async def test_a_dead_letter_is_discarded(system: System, page: Page) -> None:
    with Ledger.create(f"sqlite:///{system.data_dir / 'ledger.db'}") as ledger:
        ledger.recorder.add_dead_letter("", "the entry's fields are wrong", b"unreadable")
    await page.open(f"{system.admin_url}/console/dead-letters")

    await press(page, "Show")
    await page.text_with("cannot be read as usage events")
    await press(page, "Discard")
    await confirm(page)

    await page.text_with("No dead letters")


async def test_the_theme_is_chosen_and_an_operator_logs_out(system: System, page: Page) -> None:
    await page.open(f"{system.admin_url}/console/models")

    await follow(page, "Dark")
    await page.text_with("Models")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await follow(page, "Log out")

    await page.text_with("Operator key")
