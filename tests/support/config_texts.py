"""Loads configuration documents from one text."""

from pathlib import Path

from sluicegate.gateway.config.document import Document
from sluicegate.gateway.config.load import load_sources
from sluicegate.gateway.config.sources import DocumentSource


def load_text(text: str, *, name: str = "document", placement: Path | None = None) -> Document:
    """Return the document of one text, such as a posted one."""
    return load_sources((DocumentSource(name=name, text=text),), placement=placement)
