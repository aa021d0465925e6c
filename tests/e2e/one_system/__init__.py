"""Tests of one running system, whose parts they put back in order. One process runs all of them."""
