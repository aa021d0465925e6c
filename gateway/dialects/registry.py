"""Lists all dialects (APIs of other products). To add a dialect, add a line here."""

from typing import Final

from sluicegate.gateway.api.dialect import Dialect
from sluicegate.gateway.dialects.cohere import COHERE
from sluicegate.gateway.dialects.gliner import GLINER
from sluicegate.gateway.dialects.guards.dialect import GUARDS
from sluicegate.gateway.dialects.guards.presidio import PRESIDIO
from sluicegate.gateway.dialects.hugging_face import HUGGING_FACE
from sluicegate.gateway.dialects.jina_voyage import JINA, VOYAGE
from sluicegate.gateway.dialects.oip.dialect import OPEN_INFERENCE
from sluicegate.gateway.dialects.openai import OPENAI
from sluicegate.gateway.dialects.openai_batches import OPENAI_BATCHES
from sluicegate.gateway.dialects.routers.dialect import ROUTERS
from sluicegate.gateway.dialects.tei import TEI

DIALECTS: Final[tuple[Dialect, ...]] = (
    OPENAI,
    OPENAI_BATCHES,
    COHERE,
    HUGGING_FACE,
    TEI,
    OPEN_INFERENCE,
    JINA,
    VOYAGE,
    GLINER,
    GUARDS,
    PRESIDIO,
    ROUTERS,
)
