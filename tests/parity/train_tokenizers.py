"""Trains the tokenizers of the checkpoints: `python -m tests.parity.train_tokenizers`."""

from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.parity.texts import DATA, read_texts

_WORDS = 800
_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]


def main() -> None:
    """Train all three on the same texts."""
    texts = read_texts()
    _save("wordpiece", word_piece(texts))
    _save("bpe", byte_bpe(texts))
    _save("unigram", unigram(texts))


def word_piece(texts: list[str]) -> Tokenizer:
    """Return a tokenizer like BERT's."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    # Too few letters for some texts' alphabets, so that there are unknown words.
    trainer = trainers.WordPieceTrainer(
        vocab_size=_WORDS, special_tokens=_BERT, limit_alphabet=120, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = _template(tokenizer, "[CLS]", "[SEP]")
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def byte_bpe(texts: list[str]) -> Tokenizer:
    """Return a tokenizer like RoBERTa's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=_WORDS,
        special_tokens=[AddedToken(t, special=True, lstrip=t == "<mask>") for t in _ROBERTA],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", _ROBERTA.index("</s>")),
        ("<s>", _ROBERTA.index("<s>")),
        trim_offsets=True,
        add_prefix_space=False,
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def unigram(texts: list[str]) -> Tokenizer:
    """Return a tokenizer like DeBERTa-v3's."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace("  ", " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=_WORDS, special_tokens=_DEBERTA, unk_token="[UNK]", show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = _template(tokenizer, "[CLS]", "[SEP]")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def _template(tokenizer: Tokenizer, first: str, last: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )


def _save(name: str, tokenizer: Tokenizer) -> None:
    Path(DATA, f"{name}-tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


if __name__ == "__main__":
    main()
