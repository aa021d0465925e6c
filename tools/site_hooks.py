"""Adapts the documentation to the site. MkDocs calls these functions by their names."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tools.site_text import FOLDERS, OUTSIDE, site_text

_ROOT = Path(__file__).resolve().parents[1]
_UNLISTED = {"template.md"}


def on_config(config: Any) -> Any:
    """Add all pages of some folders to the navigation."""
    sections = {name: below for part in config.nav for name, below in part.items()}
    for folder, (section, title) in FOLDERS.items():
        paths = sorted(_ROOT.glob(f"docs/{folder}/*.md"), key=lambda path: path.name.lower())
        names = [f"{folder}/{path.name}" for path in paths if path.name not in _UNLISTED]
        first = f"{folder}/README.md"
        if names:
            rest = [name for name in names if name != first]
            sections[section].append({title: [first, *rest] if first in names else rest})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the site whose files are outside `docs`."""
    for path, name in OUTSIDE.items():
        text = (_ROOT / path.removeprefix("../")).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the text of a page in the form that the site needs."""
    known = {file.src_uri for file in files}
    return site_text(
        markdown, page.file.src_uri, known=known, repository=config.extra.get("repository") or ""
    )
