"""Provides 56 questions with contexts of every odd kind, and the parameters they are asked with."""

from typing import Any

import msgspec

from tests.parity.texts import read_texts

# Each is asked with every question of `_ASKED`.
_CONTEXTS = (
    "Paris is the capital of France, and Berlin is the capital of Germany.",
    "paris PARIS Paris; the answer is Paris.",
    (
        "I paid \U0001f600\U0001f600 12 \u20ac for a "
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
        " ticket \U0001f1eb\U0001f1f7 in S\u00e3o Paulo \U0001f44d\U0001f3fd!"
    ),
    (
        "Cafe\u0301 nai\u0308ve Zu\u0308rich, "
        "Å is A\u030a and not Å: e\u0301\u0302\u0303 stays one letter."
    ),
    "שלום עולם, זה מבחן קצר. قال الرجل: «مرحبا بالعالم» في ٢٠٢٤.",
    "東京は日本の首都です。北京是中国的首都。서울은 한국의 수도이다.",
    "a",
    ".",
    "   \n\t ",
    "\u200b\u200d\ufeff",
    "x" * 300,
    "[CLS] in [SEP] a <s> text </s> of [MASK] tokens <pad>",
    "tabs\tand\nlines\r\nand   many    spaces\u00a0\u2003here",
    "``quoted'' -- well-known e-mail@example.com http://a.b/c?d=e&f 3.14,15 #tag @you",
    (
        "\ufb01ne \ufb02ight \u00bd \u2460 \uff21\uff22\uff23 "
        "\u01c6 \u0130stanbul \u1e9e stra\u00dfe \u0149"
    ),
    "\x00\x01 control \x7f characters \u2028 here",
    "The card was charged twice. " * 3,
)
_ASKED = ("Where is my card?", "¿Qué 😀 זה?", "a")
# Contexts of several windows, in words.
_LONG = (40, 90, 400)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters under the names of the pipeline."""

    top_k: int = 1
    max_answer_len: int = 15
    max_seq_len: int | None = None
    doc_stride: int | None = None
    align_to_words: bool = True
    handle_impossible_answer: bool = False

    def given(self) -> dict[str, Any]:
        """Return those that are not left out."""
        return {
            name: value for name, value in msgspec.structs.asdict(self).items() if value is not None
        }


ASKED: dict[str, Asked] = {
    "defaults": Asked(),
    "several": Asked(top_k=5),
    "narrow": Asked(top_k=4, max_answer_len=3, max_seq_len=48, doc_stride=5),
    "pieces": Asked(top_k=5, align_to_words=False),
    "impossible": Asked(top_k=4, handle_impossible_answer=True),
}


def question_pairs() -> list[tuple[str, str]]:
    """Return questions with their contexts."""
    texts = read_texts()
    words = " ".join(texts).split()
    pairs = [(question, context) for context in _CONTEXTS for question in _ASKED]
    pairs += [("What did they say about it?", " ".join(words[7 : 7 + most])) for most in _LONG]
    pairs.append(("Who? " * 8, " ".join(words[:60])))
    pairs.append((" ", "A question of no words has a context nevertheless."))
    return pairs
