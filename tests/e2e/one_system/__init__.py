"""Tests of one running system, which they leave as they found it. One process runs all of them."""
