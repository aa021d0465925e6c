"""Defines the API for model owners' algorithms: `Ask` calls models, `Refused` rejects an item.

See docs/algorithms.md, "Your own algorithm".
"""

from sluicegate.backends.algorithms.authoring import Ask, Refused

__all__ = ["Ask", "Refused"]
