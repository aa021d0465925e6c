"""Holds what the reference libraries answered of a checkpoint that they wrote."""

from pathlib import Path
from typing import Any

import msgspec

CANDIDATES = ["money", "travel"]
TEMPLATE = "This is about {}."
PROMPT_NAMES = ("query", "STS")
INSTRUCTION = "Find the same place"
POOL_FACTOR = 2
DECODERS = ("qwen3", "gemma3_text")
ENCODERS = (
    "bert",
    "distilbert",
    "roberta",
    "xlm-roberta",
    "mpnet",
    "electra",
    "albert",
    "deberta-v2",
    "modernbert",
    "eurobert",
    "gte",
    "nomic_bert",
    "jina_embeddings_v3",
    "t5",
    "clip_text_model",
)
SIGLIP = ("siglip_text_model", "siglip2_text_model")
FAMILIES = (*ENCODERS, *SIGLIP, *DECODERS)
# Of these families, fewer checkpoints get more texts.
FEWER = FAMILIES[FAMILIES.index("eurobert") :]
# Checkpoints of other libraries; `small_checkpoints` writes them.
SMALL = ("model2vec", "StaticEmbedding", "SetFit", "PEFT")


class LibraryAnswers(msgspec.Struct, kw_only=True):
    """Describes a checkpoint in `notes`, and holds the answers of each task to all texts.

    With a `failure` the libraries do not answer at all.
    """

    name: str
    family: str
    purpose: str
    notes: list[str]
    texts: list[str]
    versions: str
    labels: list[str] = []
    scores: dict[str, list[Any]] = {}
    failure: str | None = None


def answers_file(folder: Path) -> Path:
    """Return the file of the answers of a checkpoint's folder."""
    return folder.with_name(f"{folder.name}.answers.json")


def base_folder(folder: Path) -> Path:
    """Return where the base model of an adapter's folder is; only adapters have one."""
    return folder.with_name(f"{folder.name}.base")


def read_answers(folder: Path) -> LibraryAnswers:
    """Return the answers of a checkpoint's folder."""
    return msgspec.json.decode(answers_file(folder).read_bytes(), type=LibraryAnswers)
