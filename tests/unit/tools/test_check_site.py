"""Tests that the check of a built site finds what leads nowhere and what comes from elsewhere."""

from pathlib import Path

import pytest

from tools.check_site import main, problems


def site(root: Path, **pages: str) -> Path:
    for name, text in pages.items():
        (root / f"{name}.html").write_text(f"<html><body>{text}</body></html>")
    return root


def test_links_to_pages_sections_and_other_hosts_are_no_problem(tmp_path: Path) -> None:
    text = '<a href="b.html#x">b</a><a href="#y">y</a><p id="y"><a href="https://h.example/">h</a>'

    found = list(problems(site(tmp_path, a=text, b='<h2 id="x">x</h2>')))

    assert found == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="c.html">c</a>', "a.html: the link `c.html` does not lead to a file"),
        ('<a href="b.html#z">z</a>', "a.html: the link `b.html#z` does not lead to a section"),
        ('<a href="#z">z</a>', "a.html: the link `#z` does not lead to a section"),
        ('<img src="x.svg">', "a.html: `x.svg` does not lead to a file"),
        (
            '<script src="https://cdn.example/x.js"></script>',
            "a.html: `https://cdn.example/x.js` is loaded from another host",
        ),
        (
            '<link rel="stylesheet" href="//fonts.example/x.css">',
            "a.html: `//fonts.example/x.css` is loaded from another host",
        ),
    ],
)
def test_what_leads_nowhere_or_elsewhere_is_named(tmp_path: Path, text: str, problem: str) -> None:
    found = list(problems(site(tmp_path, a=text, b="")))

    assert found == [problem]


def test_a_stylesheet_that_loads_from_another_host_is_named(tmp_path: Path) -> None:
    (site(tmp_path, a="") / "x.css").write_text("a { background: url('https://h.example/x.png') }")

    assert list(problems(tmp_path)) == [
        "x.css: `https://h.example/x.png` is loaded from another host"
    ]


def test_the_exit_code_tells_whether_there_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert "build the site with `make docs`" in capsys.readouterr().err
    assert main([str(site(tmp_path, a=""))]) == 0
