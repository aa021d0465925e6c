"""Has transformers write random text towers of SigLIP and SigLIP 2, with its answers.

`python -m tests.parity.siglip_checkpoints FOLDER`, where the reference libraries are installed.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
import transformers
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer

from tests.parity.decoder_checkpoints import train_gemma
from tests.parity.library_answers import SIGLIP, LibraryAnswers, answers_file
from tests.parity.library_checkpoints import Drawn, draw_texts, draw_weights
from tests.parity.texts import DATA

PER_FAMILY = 10
_CLASSES = {"siglip_text_model": "SiglipText", "siglip2_text_model": "Siglip2Text"}


def _tokenizer(drawn: Drawn) -> Any:
    """Return a tokenizer of SigLIP 2, of Gemma, or a generic one; all end texts."""
    kind = drawn.one("Siglip2Tokenizer", "GemmaTokenizer", "TokenizersBackend")
    drawn.notes.append(kind)
    if kind == "TokenizersBackend":
        file = drawn.one("unigram", "bpe", "wordpiece")
        own = Tokenizer.from_file(str(DATA / f"{file}-tokenizer.json"))
        padding = drawn.one(*(own.id_to_token(number) for number in range(5)))
        made = transformers.PreTrainedTokenizerFast(tokenizer_object=own, pad_token=padding)
    else:
        trained = train_gemma()
        merges = [tuple(each) for each in trained["merges"]]
        made = getattr(transformers, kind)(vocab=trained["vocab"], merges=merges)
        end = made.convert_tokens_to_ids("<eos>")
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="$A <eos>", pair="$A <eos> $B <eos>", special_tokens=[("<eos>", end)]
        )
    return made


def _config(drawn: Drawn, words: int) -> Any:
    hidden, heads = drawn.one((16, 2), (16, 4), (24, 3))
    return getattr(transformers, f"{_CLASSES[drawn.family]}Config")(
        vocab_size=words,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_hidden_layers=drawn.one(1, 2),
        intermediate_size=drawn.one(24, 32),
        max_position_embeddings=drawn.positions,
        projection_size=drawn.one(None, 8),
        layer_norm_eps=drawn.one(1e-6, 1e-2),
        hidden_act=drawn.one("gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu", "quick_gelu"),
    )


def write(drawn: Drawn, folder: Path) -> None:
    """Write a checkpoint as `save_pretrained` does."""
    drawn.positions = drawn.one(64, 64, 24)
    tokenizer = _tokenizer(drawn)
    tokenizer.model_max_length = drawn.positions
    config = _config(drawn, len(tokenizer) + 2)
    model = getattr(transformers, f"{_CLASSES[drawn.family]}Model")(config).eval()
    draw_weights(drawn, model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # As published; `save_pretrained` does not write it.
    own = folder / "tokenizer_config.json"
    published = {"model_input_names": ["input_ids"], "padding_side": "right"}
    own.write_text(json.dumps(json.loads(own.read_text()) | published))
    if drawn.chance(0.5):
        path = folder / "config.json"
        default = type(config)().to_dict()
        given = json.loads(path.read_text())
        kept = {n: v for n, v in given.items() if n == "model_type" or default.get(n, ...) != v}
        path.write_text(json.dumps(kept))
        drawn.notes.append("trimmed config")
    (folder / "model.yaml").write_text("truncate: true\n")
    drawn.notes.append(f"{drawn.positions} positions")


def answer(drawn: Drawn, folder: Path) -> LibraryAnswers:
    """Return the vectors of 56 texts, each filled to the most positions."""
    model = getattr(transformers, f"{_CLASSES[drawn.family]}Model").from_pretrained(folder).eval()
    tokenizer, texts = AutoTokenizer.from_pretrained(folder), draw_texts(drawn, folder)
    vectors = []
    for text in texts:
        given = tokenizer(text, padding="max_length", truncation=True, return_tensors="pt")
        with torch.no_grad():
            vector = model(**given).pooler_output[0]
        vectors.append(torch.nn.functional.normalize(vector, dim=0).tolist())
    return LibraryAnswers(
        name=drawn.name,
        family=drawn.family,
        purpose="embed",
        notes=drawn.notes,
        texts=texts,
        versions=f"transformers {transformers.__version__}",
        scores={"embedding": vectors},
    )


def main() -> None:
    """Write the checkpoints of both families, and the answers beside them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--families", nargs="*", default=SIGLIP)
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in given.families:
        for number in range(PER_FAMILY):
            drawn = Drawn(family, number, given.seed)
            folder = given.folder / drawn.name
            write(drawn, folder)
            answers_file(folder).write_bytes(msgspec.json.encode(answer(drawn, folder)))
            sys.stdout.write(f"{drawn.name}: {'; '.join(drawn.notes)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
