"""Drives a headless browser by its debugging protocol; it reaches loopback only."""

import asyncio
import base64
import itertools
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from testing.waiting import until

CHROMIUM = Path("/usr/bin/chromium")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    *("--window-size=1400,1000", "--remote-debugging-port=0"),
)
# Every text of a page, shadow trees included; `innerHTML` has no shadow trees.
_TEXT = """(expected => {
  const skipped = ['STYLE', 'SCRIPT'];
  const textOf = node => node.nodeType === Node.TEXT_NODE ? node.data
    : skipped.includes(node.nodeName) ? ''
    : [...(node.shadowRoot || node).childNodes].map(textOf).join(' ');
  return new Promise(resolve => {
    const look = () => {
      const text = textOf(document.body).replace(/\\s+/g, ' ');
      text.includes(expected) ? resolve(text) : setTimeout(look, 300);
    };
    look();
  });
})"""


class Page:
    """One page: `requested` has the URLs of its requests, `complaints` the browser's errors."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._is_loaded = False
        self.requested: list[str] = []
        self.complaints: list[str] = []

    async def open(self, url: str) -> None:
        """Go to `url` and return when it is loaded, its scripts running."""
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self._call(f"{domain}.enable")
        self._is_loaded = False
        await self._call("Page.navigate", url=url)
        await self._loaded()

    async def follow(self, expression: str) -> None:
        """Evaluate an expression that opens another page, and return when the page is loaded."""
        self._is_loaded = False
        await self.evaluate(expression)
        await self._loaded()

    async def text_with(self, expected: str) -> str:
        """Return the page's text once `expected` is in it."""
        text: str = await self.evaluate(f"{_TEXT}({msgspec.json.encode(expected).decode()})")
        return text

    async def evaluate(self, expression: str) -> Any:
        """Return the value of `expression`. If it is a promise, wait for its value."""
        answer = await self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def screenshot(self) -> bytes:
        """Return a picture of the visible part, as PNG."""
        answer = await self._call("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    async def _loaded(self) -> None:
        async with asyncio.timeout(120):
            while not self._is_loaded:
                self._note(await self._socket.receive_json())

    async def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(120):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == number:
                    assert "error" not in message, message
                    result: dict[str, Any] = message["result"]
                    return result
                self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        if "method" not in message:  # the answer to a call that was given up
            return
        event, values = message["method"], message["params"]
        if event == "Page.loadEventFired":
            self._is_loaded = True
        elif event == "Network.requestWillBeSent":
            self.requested.append(values["request"]["url"])
        elif event == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.complaints.append(values["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(values["exceptionDetails"]["text"])


@asynccontextmanager
async def open_page(folder: Path) -> AsyncIterator[Page]:
    """Start a browser that keeps its files in `folder`, and return its empty page."""
    flags = (*_FLAGS, f"--user-data-dir={folder}")
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *flags, "about:blank", stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        chosen = folder / "DevToolsActivePort"
        # The file is there a moment before its text is.
        await until(
            lambda: chosen.exists() and len(chosen.read_text().split()) > 0,
            within=60,
            what="the browser listens",
        )
        address = f"http://127.0.0.1:{chosen.read_text().split()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{address}/json/list") as response:
                pages = [page for page in await response.json() if page["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        process.terminate()
        await process.wait()
