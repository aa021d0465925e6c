"""Holds the peers' page and picture to the recorded results."""

import re

from loadtests.peers.compare import RECORDED
from loadtests.peers.comparison import Kind, Work, read_comparison
from loadtests.peers.page import render_page
from loadtests.peers.picture import quickest


def test_the_page_is_made_of_the_results() -> None:
    """`make bench NAME=peers ARGS=--draw-only` writes it."""
    page = render_page(read_comparison(RECORDED.results), picture="plots/peers.svg")

    assert RECORDED.page.read_text() == page


def test_the_picture_shows_every_peer_of_the_results_with_its_rate() -> None:
    """Each is shown in its quickest way, and no rate is from elsewhere."""
    comparison = read_comparison(RECORDED.results)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", RECORDED.picture.read_text())

    shown = [each for kind in Kind for each in quickest(comparison.at(Work(kind=kind)))]

    assert shown
    for figure in shown:
        name = figure.what.partition(": ")[0]
        assert any(text.rstrip(" †‡§¶#") == name for text in texts), name
        assert f"{figure.rate:,.0f}" in texts


def test_the_recorded_figures_are_of_no_dry_run() -> None:
    """Each has a source with a machine, a date and a commit."""
    comparison = read_comparison(RECORDED.results)

    assert not comparison.is_dry_run
    for figure in comparison.figures:
        machine = comparison.sources[figure.source].machine
        assert machine.cpu
        assert machine.date
        assert machine.commit
