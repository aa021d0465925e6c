"""Takes pictures of the console as a viewer sees it, in the browser that tests use."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from testing.browser import Page, open_page
from testing.system import System

_LOG_IN = """document.querySelector('#key').value = {};
document.querySelector('form[action="/console/login"]').requestSubmit()"""
_SETTLED = "new Promise(resolve => setTimeout(resolve, {}))"
_SETTLES_IN = 2500
"""Milliseconds until what a page fetches after it is loaded is drawn."""


class ConsoleView(msgspec.Struct, frozen=True, kw_only=True):
    """What of the console a picture shows: an element of a page, from its top."""

    path: str
    selector: str = "main"
    height: int = 560


def viewer_key(system: System) -> str:
    """Create an operator who may only look, and return the key."""
    with system.admin() as admin:
        body = {"name": "on-call", "roles": ["viewer"]}
        made = admin.post("/admin/operators", json=body).raise_for_status()
        key: str = made.json()["key"]
    return key


def take_pictures(system: System, key: str, views: Mapping[Path, ConsoleView]) -> None:
    """Write a picture of each view to its path."""
    asyncio.run(_take(system, key, views))


async def _take(system: System, key: str, views: Mapping[Path, ConsoleView]) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with open_page(Path(folder)) as page:
            await _log_in(page, system, key)
            for path, view in views.items():
                await page.open(f"{system.admin_url}{view.path}")
                await page.evaluate(_SETTLED.format(_SETTLES_IN))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(await page.picture_of(view.selector, height=view.height))


async def _log_in(page: Page, system: System, key: str) -> None:
    await page.open(f"{system.admin_url}/console")
    await page.text_with("Key of an operator")
    await page.follow(_LOG_IN.format(msgspec.json.encode(key).decode()))
    await page.text_with("Requests per second")
