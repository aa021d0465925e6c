"""Tests that pages of a code host become pages of the site."""

import pytest

from tools.site_text import site_text

KNOWN = {"api.md", "start/customers.md", "decisions/README.md", "changelog.md", "index.md"}


def text(markdown: str, page: str = "api.md", repository: str = "") -> str:
    return site_text(markdown, page, known=KNOWN, repository=repository)


def test_programs_that_follow_on_each_other_are_tabs() -> None:
    blocks = '```shell title="curl"\ncurl x\n```\n\n```python title="Python"\nprint()\n\nx\n```\n'

    found = text(f"before\n\n{blocks}\nafter\n")

    assert found == (
        'before\n\n=== "curl"\n\n    ```shell\n    curl x\n    ```\n\n'
        '=== "Python"\n\n    ```python\n    print()\n\n    x\n    ```\n\nafter\n'
    )


def test_one_block_stays_as_it_is() -> None:
    block = '```shell title="curl"\ncurl x\n```\n'

    assert text(block) == block


@pytest.mark.parametrize(
    ("page", "link", "found"),
    [
        ("api.md", "start/customers.md#keys", "start/customers.md#keys"),
        ("start/customers.md", "../api.md", "../api.md"),
        ("start/customers.md", "../decisions/", "../decisions/README.md"),
        ("api.md", "../CHANGELOG.md", "changelog.md"),
        ("start/customers.md", "../../README.md", "../index.md"),
        ("changelog.md", "docs/api.md#errors", "api.md#errors"),
        ("api.md", "missing.md", "missing.md"),
        ("api.md", "https://example.org/x", "https://example.org/x"),
    ],
)
def test_a_link_leads_where_it_led(page: str, link: str, found: str) -> None:
    assert text(f"[words]({link})", page) == f"[words]({found})"


def test_a_link_into_the_code_leads_to_the_repository_or_is_words() -> None:
    link = "[`Problem`](../gateway/http/problem_details.py)"

    assert text(link) == "`Problem`"
    assert text(link, repository="https://h.example/main") == (
        "[`Problem`](https://h.example/main/gateway/http/problem_details.py)"
    )


def test_fenced_text_is_left_alone() -> None:
    block = "```\n[words](../CHANGELOG.md)\n```\n"

    assert text(block) == block
