"""Checks a built site: every link leads somewhere, and nothing is loaded from another host.

`python -m tools.check_site build/site` names each link that leads nowhere and each resource of
another host, and exits 1 if there is one. MkDocs checks the sources; this sees what it adds, too.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from typing_extensions import override

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src"}
# What a `link` of these relations names is not loaded.
_NAMED = {"canonical", "next", "prev", "alternate", "edit", "license"}
_CSS_URL = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class SitePage(NamedTuple):
    """What one page of the site names."""

    anchors: frozenset[str]
    links: tuple[str, ...]
    resources: tuple[str, ...]


class _Reader(HTMLParser):
    """Collects what a page names."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if (name := _LOADED.get(tag)) and values.get(name):
            self.resources.append(values[name])
        if tag == "link" and not _NAMED & set(values.get("rel", "").split()):
            self.resources.append(values.get("href", ""))


def read_page(text: str) -> SitePage:
    """Return what a page names."""
    reader = _Reader()
    reader.feed(text)
    return SitePage(frozenset(reader.anchors), tuple(reader.links), tuple(reader.resources))


def problems(site: Path) -> Iterator[str]:
    """Yield what is wrong with the site in a folder, as sentences."""
    site = site.resolve()
    pages = {
        path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    if not pages:
        yield f"{site} has no page: build the site with `make docs`"
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name}: {problem}" for problem in _problems_of(page, path, site, pages))
    for path in sorted(site.rglob("*.css")):
        for url in _CSS_URL.findall(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)}: `{url}` is loaded from another host"


def _problems_of(
    page: SitePage, path: Path, site: Path, pages: dict[Path, SitePage]
) -> Iterator[str]:
    for link in page.links:
        if reason := _lost(link, path, site, pages):
            yield f"the link `{link}` {reason}"
    for resource in page.resources:
        if urlsplit(resource).netloc:
            yield f"`{resource}` is loaded from another host"
        elif reason := _lost(resource, path, site, pages):
            yield f"`{resource}` {reason}"


def _lost(link: str, path: Path, site: Path, pages: dict[Path, SitePage]) -> str:
    """Return what is wrong with a link of the page at `path`; empty where it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    # Only the page for what is not found has paths from the root.
    folder = site if parts.path.startswith("/") else path.parent
    target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "leads to no file"
    section = unquote(parts.fragment)
    if section and target in pages and section not in pages[target].anchors:
        return "leads to no section"
    return ""


def main(arguments: list[str]) -> int:
    """Print the problems of the site in the folder that is named; return the exit code."""
    site = Path(arguments[0] if arguments else "build/site")
    found = list(problems(site))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{site}: every link leads somewhere, and nothing is loaded from another host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
