"""Defines the error of building the demo models."""


class DemoModelsError(Exception):
    """Reports in one line what is wrong and what to do about it."""
