"""Sessions, roles, request forgery and headers of the console."""

import re

import httpx
import pytest
from typing_extensions import override

from sluicegate.gateway.admin.operator_directory import OperatorDirectory
from sluicegate.gateway.console.login_limits import MOST_FAILURES
from sluicegate.gateway.console.sessions import LIFETIME, Sessions
from sluicegate.gateway.operations.operators import Operator, Role
from tests.support.admin import AUTHORIZATION, KEY
from tests.support.clock import Clock
from tests.support.console import log_in, token_of

pytestmark = pytest.mark.anyio
_LOGIN = "/console/login"


async def test_without_a_session_pages_lead_to_the_login_and_back(
    browser: httpx.AsyncClient,
) -> None:
    refused = await browser.get("/console")
    part = await browser.get("/console", headers={"hx-request": "true"})
    with_key = await browser.get("/console", headers=AUTHORIZATION)

    assert (refused.status_code, refused.headers["location"]) == (303, _LOGIN)
    assert refused.content == b""
    assert part.headers["hx-redirect"] == _LOGIN
    assert part.content == b""
    assert with_key.status_code == 303  # a key is for programs, which ask /admin


async def test_an_operator_logs_in_with_his_key_and_out(browser: httpx.AsyncClient) -> None:
    answer = await log_in(browser, KEY)
    cookie = answer.headers["set-cookie"]
    page = await browser.get("/console")
    out = await browser.post("/console/logout", data={"csrf": token_of(page)})
    after = await browser.get("/console")

    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/console" in cookie
    assert KEY not in cookie
    assert (page.status_code, out.status_code, after.status_code) == (200, 303, 303)


async def test_a_form_without_a_session_is_small(browser: httpx.AsyncClient) -> None:
    form = await browser.get(_LOGIN)
    fields = {"csrf": token_of(form), "key": "k" * 20_000}
    refused = await browser.post(_LOGIN, data=fields)

    assert refused.status_code == 413


async def test_a_login_goes_on_to_pages_of_the_console_only(browser: httpx.AsyncClient) -> None:
    own = await log_in(browser, KEY, to="/console/models")
    foreign = await log_in(browser, KEY, to="//evil.example/console")

    assert own.headers["location"] == "/console/models"
    assert foreign.headers["location"] == "/console"


async def test_a_login_with_an_odd_page_to_go_on_to_leads_to_the_overview(
    browser: httpx.AsyncClient,
) -> None:
    response = await log_in(browser, KEY, to="/console/\u65e5")

    assert response.headers["location"] == "/console"


async def test_the_cookie_is_secure_under_tls(browser: httpx.AsyncClient) -> None:
    form = await browser.get("https://admin/console/login")

    assert "Secure" in form.headers["set-cookie"]


async def test_a_wrong_key_is_refused_and_many_are_slowed_down(
    browser: httpx.AsyncClient, clock: Clock
) -> None:
    statuses = [(await log_in(browser, "wrong")).status_code for _ in range(MOST_FAILURES + 1)]
    right = await log_in(browser, KEY)
    clock.advance(60)
    later = await log_in(browser, KEY)

    assert statuses == [401] * MOST_FAILURES + [429]
    assert right.status_code == 429
    assert int(right.headers["retry-after"]) >= 1
    assert later.status_code == 303


async def test_a_session_ends_after_its_life(operator: httpx.AsyncClient, clock: Clock) -> None:
    before = await operator.get("/console")
    clock.advance(LIFETIME)
    after = await operator.get("/console")

    assert (before.status_code, after.status_code) == (200, 303)


async def test_a_change_from_elsewhere_is_refused(operator: httpx.AsyncClient) -> None:
    for headers in [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://admin", "sec-fetch-site": "cross-site"},
        {"origin": "http://admin", "sec-fetch-site": "same-site"},
        {"x-csrf-token": "other"},
        {"x-csrf-token": ""},
    ]:
        refused = await operator.post("/console/logout", headers=headers)

        assert refused.status_code == 403
        assert (await operator.get("/console")).status_code == 200


async def test_who_does_not_say_where_a_change_comes_from_is_refused(
    operator: httpx.AsyncClient,
) -> None:
    del operator.headers["origin"]

    assert (await operator.post("/console/logout")).status_code == 403


async def test_a_page_may_load_its_own_files_only_and_no_inline_script(
    operator: httpx.AsyncClient,
) -> None:
    page = await operator.get("/console")
    policy = page.headers["content-security-policy"]

    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?! src=)|<style| style=| on\w+=", page.text)


async def test_files_have_their_contents_in_their_address_and_stay_for_a_year(
    operator: httpx.AsyncClient,
) -> None:
    page = await operator.get("/console")
    urls = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', page.text)
    found = [await operator.get(url) for url in urls]
    old = await operator.get("/console/static/0000000000000000/console.css")

    assert len(urls) >= 6
    assert {each.status_code for each in found} == {200}
    assert all("immutable" in each.headers["cache-control"] for each in found)
    assert old.status_code == 404


async def test_the_theme_is_kept(operator: httpx.AsyncClient) -> None:
    chosen = await operator.post("/console/theme", data={"theme": "dark", "to": "/console"})
    page = await operator.get("/console")

    assert chosen.headers["location"] == "/console"
    assert '<html lang="en" data-theme="dark">' in page.text


class _Directory(OperatorDirectory):
    """Knows keys as long as they are in `known`."""

    def __init__(self, **known: Role) -> None:
        super().__init__(admin_keys=())
        self.known = known

    @override
    async def authenticate(self, token: str) -> Operator | None:
        role = self.known.get(token)
        return None if role is None else Operator(token, frozenset({role}))


async def test_a_revoked_key_ends_its_sessions() -> None:
    directory = _Directory(ann=Role.VIEWER)
    sessions = Sessions(operators=directory, clock=Clock())
    cookie = await sessions.open("ann")
    assert cookie is not None
    assert await sessions.find(cookie) is not None

    directory.known.clear()
    revoked = await sessions.find(cookie)
    directory.known["ann"] = Role.VIEWER

    assert revoked is None
    assert await sessions.find(cookie) is None  # it ended for good


async def test_the_oldest_session_makes_room() -> None:
    sessions = Sessions(operators=_Directory(ann=Role.VIEWER), clock=Clock(), most=2)
    first, *others = [await sessions.open("ann") or "" for _ in range(3)]

    assert await sessions.find(first) is None
    assert None not in [await sessions.find(other) for other in others]


async def test_logins_of_one_operator_end_no_session_of_another() -> None:
    directory = _Directory(ann=Role.VIEWER, bob=Role.ADMIN)
    sessions = Sessions(operators=directory, clock=Clock(), most=4, most_of_one=2)
    first = await sessions.open("ann") or ""
    own = [await sessions.open("bob") or "" for _ in range(6)]

    assert await sessions.find(first) is not None
    assert [await sessions.find(cookie) is not None for cookie in own] == [False] * 4 + [True] * 2


async def test_who_is_logged_in_logs_in_anew(operator: httpx.AsyncClient) -> None:
    del operator.headers["x-csrf-token"]

    assert (await log_in(operator, "wrong")).status_code == 401
    assert (await log_in(operator, KEY)).status_code == 303


async def test_the_address_of_the_listener_leads_to_the_console(browser: httpx.AsyncClient) -> None:
    answer = await browser.get("/", follow_redirects=False)

    assert answer.status_code == 302
    assert answer.headers["location"] == "/console"


async def test_an_address_without_a_page_is_told_on_a_page(operator: httpx.AsyncClient) -> None:
    answer = await operator.get("/console/nothing/here")

    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is no such page" in answer.text
    assert "Go to the overview" in answer.text
