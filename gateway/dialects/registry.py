"""Lists all dialects (APIs of other products). To add a dialect, add a line here."""

from typing import Final

from gateway.api.dialect import Dialect
from gateway.dialects.cohere import COHERE
from gateway.dialects.hugging_face import HUGGING_FACE
from gateway.dialects.jina_voyage import JINA, VOYAGE
from gateway.dialects.oip.dialect import OPEN_INFERENCE
from gateway.dialects.openai import OPENAI
from gateway.dialects.openai_batches import OPENAI_BATCHES
from gateway.dialects.tei import TEI

DIALECTS: Final[tuple[Dialect, ...]] = (
    OPENAI,
    OPENAI_BATCHES,
    COHERE,
    HUGGING_FACE,
    TEI,
    OPEN_INFERENCE,
    JINA,
    VOYAGE,
)
