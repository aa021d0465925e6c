"""The site shows every page, and loads nothing from another host."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.docs.tables import ROOT, page
from tools.site_text import FOLDERS, OUTSIDE


class _SiteLoader(yaml.SafeLoader):
    """Reads what YAML says that names functions of the site's generator, without calling them."""


for _prefix in ("!", "tag:yaml.org,2002:python/"):
    _SiteLoader.add_multi_constructor(_prefix, lambda *given: given[1])
SITE = yaml.load(page("mkdocs.yml"), Loader=_SiteLoader)  # noqa: S506 - it makes no objects


def listed(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    else:
        for below in part.values() if isinstance(part, dict) else part:
            yield from listed(below)


def test_every_page_is_listed_once() -> None:
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    by_rule = tuple(f"{folder}/" for folder in FOLDERS)
    wanted = {name for name in pages if not name.startswith(by_rule)} | set(OUTSIDE.values())

    found = list(listed(SITE["nav"]))

    assert sorted(found) == sorted(wanted)


def test_links_and_sections_that_lead_nowhere_end_the_build() -> None:
    assert SITE["strict"] is True
    assert set(SITE["validation"]["links"].values()) == {"warn"}
    assert SITE["validation"]["nav"]["omitted_files"] == "warn"


def test_nothing_is_loaded_from_another_host() -> None:
    assert SITE["theme"]["font"] is False
    assert "offline" in SITE["plugins"]
    for name in [*SITE["extra"]["polyfills"], *SITE["extra_css"]]:
        assert (ROOT / "docs" / name).is_file()
        assert not re.search(r"url\(|@import", (ROOT / "docs" / name).read_text(encoding="utf-8"))


def test_the_readme_leads_to_the_first_page_and_to_each_reader_s_own() -> None:
    readme = page("README.md")

    for name in ("index", "start/customers", "start/model-owners", "start/operators"):
        assert f"(docs/{name}.md" in readme
