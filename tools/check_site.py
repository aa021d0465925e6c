"""Checks that a built site has no broken links, and loads nothing from another host.

`python -m tools.check_site build/site` prints every broken link and every foreign resource, and
exits with 1 if there is one. MkDocs only checks the source pages. This tool also checks the parts
of the site that MkDocs adds.
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
# A browser does not load a `link` with one of these relations.
_NAMED = {"canonical", "next", "prev", "alternate", "edit", "license"}
_CSS_URL = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class SitePage(NamedTuple):
    """Holds the anchors, links and resources of a page."""

    anchors: frozenset[str]
    links: tuple[str, ...]
    resources: tuple[str, ...]


class _Reader(HTMLParser):
    """Collects the anchors, links and resources of a page."""

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
    """Return the anchors, links and resources of a page."""
    reader = _Reader()
    reader.feed(text)
    return SitePage(frozenset(reader.anchors), tuple(reader.links), tuple(reader.resources))


def problems(site: Path) -> Iterator[str]:
    """Yield a sentence for each problem of the site in a folder."""
    site = site.resolve()
    pages = {
        path: read_page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))
    }
    if not pages:
        yield f"{site} has no pages; build the site with `make docs`"
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
    """Return what is wrong with a link on the page at `path`; empty if nothing is."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    # Only the 404 page has links that begin at the root.
    folder = site if parts.path.startswith("/") else path.parent
    target = (folder / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "does not lead to a file"
    section = unquote(parts.fragment)
    if section and target in pages and section not in pages[target].anchors:
        return "does not lead to a section"
    return ""


def main(arguments: list[str]) -> int:
    """Print the problems of the site in a folder; return the exit code."""
    site = Path(arguments[0] if arguments else "build/site")
    found = list(problems(site))
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{site}: no broken links, and nothing is loaded from another host")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
