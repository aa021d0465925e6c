"""Defines what a model owner's algorithm may use."""

from typing import Annotated

import msgspec


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds what an algorithm may use: seconds and rows of all models for an item, and memory.

    `import_time` are the seconds that the import of its code may take.
    """

    time: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    rows: Annotated[int, msgspec.Meta(ge=1)] = 256
    memory_bytes: Annotated[int, msgspec.Meta(ge=128 * 2**20)] = 2**30
    import_time: Annotated[float, msgspec.Meta(gt=0.0)] = 10.0
