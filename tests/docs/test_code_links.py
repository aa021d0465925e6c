"""Links from the docs into the code name what is defined there; what the map mentions exists."""

import ast
import re

from tests.docs.tables import ROOT, page

LINK = re.compile(r"\[`([^`]+)`\]\(((?:\.\./)+(?:gateway|backends|loadtests|tools)/[^)#]+\.py)\)")
# What reads as a name of the code: with a capital, an underscore or a dot; a class may be first.
WORD = re.compile(r"`((?:[A-Z]\w*[a-z]\w*|\w*_\w+|[a-z]\w*(?=\.\w))(?:\.[a-z_]\w*)*)`")
CODE = ("gateway", "backends", "wire", "sluicegate", "bulk", "tests/docs", "tests/contract")
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/*.md"))]


def defined(body: list[ast.stmt], prefix: str = "") -> set[str]:
    """Return the names of classes, functions, methods and constants."""
    names = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {prefix + node.name} | defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(prefix + node.name)
        elif isinstance(node, ast.Assign):
            names |= {prefix + ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names.add(prefix + ast.unparse(node.target))
    return names


def test_every_name_that_is_linked_is_defined_in_its_file() -> None:
    missing = []
    for origin, (word, target) in ((p, link) for p in PAGES for link in LINK.findall(page(p))):
        path = ((ROOT / origin).parent / target).resolve()
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        names = defined(ast.parse(text).body)
        if not path.exists() or (word not in names and word != path.name):
            missing.append(f"{origin}: {word} in {target}")

    assert missing == []


def test_every_link_into_the_code_names_something() -> None:
    for name in ("docs/reading.md", "docs/architecture.md"):
        links = re.findall(r"\]\((?:\.\./)+(?:gateway|backends)/[^)]*\)", page(name))
        assert len(links) == len(LINK.findall(page(name))) > 0


def mentioned(tree: ast.AST) -> set[str]:
    """Return every name that a module defines, assigns, takes or imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
    return found


def known_of(wanted: set[str]) -> set[str]:
    """Return those of the names that the code has; a file that has none of them is not parsed."""
    known: set[str] = set()
    for path in (path for folder in CODE for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if any(name.rpartition(".")[2] in text for name in wanted - known):
            tree = ast.parse(text)
            known |= wanted & (mentioned(tree) | defined(tree.body))
    return known


def test_every_name_of_the_code_that_the_map_mentions_exists() -> None:
    paths = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    modules = {path.stem for path in paths} | {path.parent.name for path in paths}
    parts_of = {
        (word, name): [word] if word[0].isupper() and "." in word else word.split(".")
        for name in ("docs/reading.md", "docs/architecture.md")
        for word in WORD.findall(page(name))
        if not (word.endswith((".py", ".toml")) or word.startswith("sluicegate") or word in modules)
    }
    known = known_of({part for parts in parts_of.values() for part in parts})

    missing = [
        f"{word} in {name}"
        for (word, name), parts in parts_of.items()
        if not known.issuperset(parts)
    ]

    assert parts_of
    assert missing == []
