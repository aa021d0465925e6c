"""The pages at the root and in docs/ keep their promises to a reader."""

import functools
import re
import subprocess
from pathlib import Path

from tests.docs.tables import ROOT, page
from tools.site_text import FOLDERS

PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
PAST = {"CHANGELOG.md"}
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]+))?\)")
PATH = re.compile(
    r"`((?:gateway|backends|loadtests|tests|tools|training|deploy|config)/[\w./*-]*\w)/?`"
)


@functools.cache
def sections(path: Path) -> set[str]:
    """Return the headings of a page as a link names them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@functools.cache
def make_targets() -> set[str]:
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"],  # noqa: S607 - the reader's own make
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return {line.split()[0] for line in printed.splitlines()}


def commands(text: str) -> list[str]:
    """Return the lines of every fenced block."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines()]


def test_the_readme_says_how_to_run_and_how_to_test() -> None:
    lines = commands(page("README.md"))

    assert "make run" in lines
    assert "make test" in lines


def test_every_make_target_that_a_page_names_exists() -> None:
    named = {
        (target, name)
        for name in PAGES
        for line in (*commands(page(name)), *re.findall(r"`(make .*)", page(name)))
        for target in re.findall(r"^make ([a-z][a-z-]*)", line)
    }

    assert [each for each in sorted(named) if each[0] not in make_targets()] == []


def test_every_link_leads_to_a_file_and_a_section() -> None:
    missing = []
    for name in PAGES:
        for target, section in LINK.findall(CODE.sub("", page(name))):
            path = (ROOT / name).parent / target if target else ROOT / name
            if not path.exists() or (section and section not in sections(path)):
                missing.append(f"{name}: {target}#{section}")

    assert missing == []


def test_every_path_of_the_project_that_a_page_names_exists() -> None:
    named = {
        (path, name) for name in PAGES if name not in PAST for path in PATH.findall(page(name))
    }
    exists = functools.cache(lambda path: any(ROOT.glob(path)))

    assert [each for each in sorted(named) if not exists(each[0])] == []


def test_the_first_page_lists_every_page_of_the_docs() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    by_rule = tuple(f"{folder}/" for folder in FOLDERS)
    wanted = {name for name in pages - {"index.md"} if not name.startswith(by_rule)}

    linked = {target for target, _ in LINK.findall(page("docs/index.md"))}

    assert wanted <= linked


def test_every_locked_file_has_hashes_and_no_address() -> None:
    for path in sorted(Path(ROOT, "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        assert "://" not in text
        for block in re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]:
            assert "--hash=sha256:" in block, block.splitlines()[0]


def test_the_demo_installs_no_training_framework() -> None:
    for name in ("demo", "dev", "gateway", "backend-cpu", "backend-openvino"):
        locked = set(re.findall(r"^([a-z0-9-]+)==", page(f"requirements/{name}.txt"), re.MULTILINE))
        assert locked.isdisjoint({"torch", "transformers", "sentence-transformers"})


def test_a_gateway_installs_no_model_runtime() -> None:
    locked = set(re.findall(r"^([a-z0-9-]+)==", page("requirements/gateway.txt"), re.MULTILINE))

    assert locked.isdisjoint({"numpy", "onnx", "onnxruntime", "tokenizers"})
    assert {"litestar", "httptools", "redis"} <= locked


def test_everything_locked_for_the_demo_is_locked_alike_for_the_tests() -> None:
    pins = {
        name: set(
            re.findall(r"^[a-z0-9-]+==[^ \\]+", page(f"requirements/{name}.txt"), re.MULTILINE)
        )
        for name in ("gateway", "backend-cpu", "backend-openvino", "demo", "dev")
    }

    assert all(pinned <= pins["dev"] for pinned in pins.values())
    assert pins["backend-cpu"] < pins["backend-openvino"]


def test_no_locked_file_has_the_package_by_which_openvino_reports_itself() -> None:
    for path in sorted(Path(ROOT, "requirements").glob("*.txt")):
        assert "openvino-telemetry" not in path.read_text(encoding="utf-8")
