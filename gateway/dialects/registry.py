"""Lists the dialects that are answered. A new one is one line."""

from typing import Final

from gateway.api.dialect import Dialect
from gateway.dialects.openai import OPENAI

DIALECTS: Final[tuple[Dialect, ...]] = (OPENAI,)
