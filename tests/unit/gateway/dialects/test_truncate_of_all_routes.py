"""Each API has its own name for what forbids that a long text is cut."""

import pytest

from gateway.dialects.cohere import CohereClassifyBody, CohereEmbedBody
from gateway.dialects.jina_voyage import (
    JinaEmbeddingsBody,
    VoyageEmbeddingsBody,
    VoyageRerankBody,
)
from gateway.dialects.tei import TeiEmbedInputs, TeiPredictInputs, TeiRerankInputs
from gateway.types import InferenceRequest


@pytest.mark.parametrize(
    "request_",
    [
        CohereEmbedBody(model="m", texts=["a"], truncate="NONE").request(),
        CohereClassifyBody(model="m", inputs=["a"], truncate="NONE").request(),
        JinaEmbeddingsBody(model="m", input="a", truncate=False).request(),
        VoyageEmbeddingsBody(model="m", input="a", truncation=False).request(),
        VoyageRerankBody(model="m", query="q", documents=["a"], truncation=False).request(),
        TeiEmbedInputs(inputs="a", truncate=False).native("m").request(),
        TeiPredictInputs(inputs="a", truncate=False).native("m").request(),
        TeiRerankInputs(query="q", texts=["a"], truncate=False).native("m").request(),
    ],
)
def test_a_caller_who_forbids_it_gets_no_text_cut(request_: InferenceRequest) -> None:
    assert not request_.truncate
