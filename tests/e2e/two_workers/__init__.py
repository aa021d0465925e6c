"""Tests of one running system of two workers and two regions, parts of which they end.

Each test waits until all is as it was, but the last one of `test_stopping.py`, the last file. One
process runs all of them.
"""
