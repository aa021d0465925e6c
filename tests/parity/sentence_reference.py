"""Records what sentence-transformers answers with other modules after an encoder."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import CrossEncoder, SentenceTransformer

from tests.parity.checkpoints import MAX_TOKENS
from tests.parity.references import References, reference_file
from tests.parity.sentence_checkpoints import (
    CHECKPOINTS,
    CROSS_RERANK,
    RANKED,
    RERANK,
    folder_name,
    sentence_texts,
    write_cross_encoder,
    write_sentence_checkpoint,
)


def record_sentences() -> None:
    """Embed and rank, and write the answers."""
    found, texts = References(), sentence_texts()
    query, *documents = texts
    with tempfile.TemporaryDirectory() as folder:
        for checkpoint in CHECKPOINTS:
            path = write_sentence_checkpoint(checkpoint, Path(folder, folder_name(checkpoint)))
            model = SentenceTransformer(str(path), device="cpu")
            found.scores[checkpoint.name] = model.encode(texts)
            if checkpoint is RANKED:
                ranked: Any = model.similarity(
                    model.encode_query([query]), model.encode_document(documents)
                )
                found.scores[RERANK] = ranked.numpy()[0]
        path = write_cross_encoder(Path(folder, "cross"))
        judge = CrossEncoder(str(path), device="cpu", max_length=MAX_TOKENS)
        scores = judge.predict([(query, document) for document in documents])
    found.scores[CROSS_RERANK] = scores
    found.spread = float(np.std(scores))
    found.write(reference_file("sentence"))
