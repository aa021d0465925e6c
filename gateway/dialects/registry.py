"""Lists the dialects that are answered. A new one is one line."""

from typing import Final

from gateway.api.dialect import Dialect
from gateway.dialects.openai import OPENAI
from gateway.dialects.openai_batches import OPENAI_BATCHES

DIALECTS: Final[tuple[Dialect, ...]] = (OPENAI, OPENAI_BATCHES)
