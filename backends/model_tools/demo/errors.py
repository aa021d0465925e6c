"""Why the demo models cannot be built."""


class DemoModelsError(Exception):
    """One line that says what is wrong and what to do about it."""
