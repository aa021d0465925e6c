"""Holds the peers' page and picture to the recorded results."""

import re

from loadtests.peers.command import PAGE, PICTURE, RESULTS
from loadtests.peers.comparison import Kind, Work, read_comparison, short
from loadtests.peers.page import render_page


def test_the_page_is_made_of_the_results_of_no_dry_run() -> None:
    """`make bench NAME=peers ARGS=--draw-only` writes it."""
    comparison = read_comparison(RESULTS)

    assert PAGE.read_text() == render_page(comparison, picture="plots/peers.svg")
    assert not comparison.is_dry_run


def test_the_picture_shows_every_peer_of_the_results_with_its_rate() -> None:
    comparison = read_comparison(RESULTS)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", PICTURE.read_text())

    shown = [each for kind in Kind for each in comparison.at(Work(kind=kind))]

    assert shown
    for figure in shown:
        assert short(figure) in texts
        assert f"{figure.rate:,.0f}" in texts
