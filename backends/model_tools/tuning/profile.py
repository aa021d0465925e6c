"""The precisions that a variant may have, and how commands report on it."""

from collections.abc import Callable
from typing import Literal

Profile = Literal["int8", "fp16"]
Say = Callable[[str], None]
