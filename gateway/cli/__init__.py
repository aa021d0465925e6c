"""Holds the command line of `sluicegate`."""

from gateway.cli.root import main

__all__ = ["main"]
