"""Tests of one running system of two workers and two regions, parts of which they end.

Each test waits until all is as it was. One process runs all of them.
"""
