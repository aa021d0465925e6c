"""Writes the generated pages of the documentation."""

from tools.reference.markdown import ROOT
from tools.reference.pages import pages


def main() -> None:
    """Write every generated page whose file is missing or outdated."""
    for name, text in pages().items():
        path = ROOT / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
