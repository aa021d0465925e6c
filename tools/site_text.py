"""Converts a page's Markdown from the code host's form to the site's form.

Adjacent blocks of curl, Python and JavaScript become tabs. A link to a file outside `docs` becomes
a link to the site's page of that file. If the site has no such page but the repository's address is
known, the link becomes a link to the file in the repository. If there is neither a page nor an
address, only the text of the link stays.
"""

import posixpath
import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

OUTSIDE: Final = {"../CHANGELOG.md": "changelog.md", "../CONTRIBUTING.md": "contributing.md"}
"""The pages of the site that are made from files outside `docs`."""
FOLDERS: Final = {
    "reference/clients": ("API", "Clients of other products"),
    "decisions": ("Development", "Decisions"),
    "runbooks": ("Operation", "Runbooks"),
}
"""Folders whose pages are all in the navigation; each has its section and title there."""
_PLACES = OUTSIDE | {"../README.md": "index.md"}
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PROGRAM = re.compile(r'^```(\w+) title="([\w+]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_PROGRAMS = re.compile(rf"(?:{_PROGRAM.pattern}\n*){{2,}}", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")


def site_text(markdown: str, page: str, *, known: Collection[str], repository: str) -> str:
    """Return the text of `page`, a path below `docs`, for the site.

    `known` holds the paths of all pages and other files. `repository` is the address to which paths
    of the project are appended; it is empty if no address is known.
    """
    # Links in files outside `docs` are relative to the root.
    folder = ".." if page in OUTSIDE.values() else posixpath.dirname(page)
    parts = _FENCE.split(_PROGRAMS.sub(lambda found: _tabs(found[0]), markdown))
    return "".join(
        part
        if part.startswith("```")
        else _LINK.sub(lambda link: _place(link, page, folder, repository, known), part)
        for part in parts
    )


def _tabs(programs: str) -> str:
    """Return adjacent fenced blocks as tabs."""
    found = []
    for language, title, source in _PROGRAM.findall(programs):
        block = f"```{language}\n{source}```"
        inner = "".join(f"    {line}\n" if line else "\n" for line in block.split("\n"))
        found.append(f'=== "{title}"\n\n{inner}')
    return "\n".join(found) + "\n"


def _place(
    link: re.Match[str], page: str, folder: str, repository: str, known: Collection[str]
) -> str:
    """Return a link in the site's form: to a page, to the repository, or only its text."""
    words, target, section = link[1], link[2], link[3] or ""
    path = posixpath.normpath(posixpath.join(folder, target))
    inside = _PLACES.get(path) or path.removeprefix("../docs/")
    for name in (inside, f"{inside}/README.md"):
        if name in known:
            return f"[{words}]({posixpath.relpath(name, posixpath.dirname(page) or '.')}{section})"
    is_lost = Path(inside).suffix == ".md" and not inside.startswith("..")
    if is_lost:  # a broken link, which MkDocs reports
        return link[0]
    in_repository = posixpath.normpath(posixpath.join("docs", path))
    return f"[{words}]({repository}/{in_repository})" if repository else words
