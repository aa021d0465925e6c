"""Defines the resource limits of a model owner's algorithm."""

from typing import Annotated

import msgspec


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits the resources of an algorithm.

    An item may take `time` seconds, and use `rows` rows of all its models together. A process may
    use `memory_bytes` bytes of memory, and take `import_time` seconds to import the code.
    """

    time: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    rows: Annotated[int, msgspec.Meta(ge=1)] = 256
    memory_bytes: Annotated[int, msgspec.Meta(ge=128 * 2**20)] = 2**30
    import_time: Annotated[float, msgspec.Meta(gt=0.0)] = 10.0
