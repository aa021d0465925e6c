"""Lists the precisions that a variant may have, and types the commands' reports."""

from collections.abc import Callable
from typing import Literal

Profile = Literal["int8", "fp16"]
Echo = Callable[[str], None]
