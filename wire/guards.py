"""Defines guards and routers: which detectors look at a text, and what follows from their findings.

The configuration document declares them, and backends run their detectors. The detectors are the
parameters of the task `guard`, so they are part of the cache key. A verdict from before a change of
the guard is therefore never found in the cache.
"""

import re
from collections.abc import Collection
from typing import Annotated, Final, Literal

import msgspec

from sluicegate.wire.settings import stated, unit

Action = Literal["flag", "redact", "block"]
"""What follows from a finding; the strongest action of all findings decides."""
Verdict = Literal["allow", "flag", "redact", "block"]
VERDICTS: tuple[Verdict, ...] = ("allow", "flag", "redact", "block")
"""All verdicts, weakest first."""
Format = Literal["credit_card", "email", "iban", "ip_address", "phone", "url", "us_ssn"]
Threshold = Annotated[float, unit("score"), msgspec.Meta(ge=0, le=1)]
MAX_DETECTORS = 64
MAX_PATTERN_CHARACTERS = 4096
"""The most characters of a pattern, which bounds its memory."""
MAX_PATTERN_INSTRUCTIONS = 10_000
"""The most instructions of RE2's program for a pattern, which bounds its time. A class of the
letters of all scripts takes about 1,200."""
MAX_WORDS = 1000
MAX_WORD_CHARACTERS = 256
MAX_EXAMPLES = 256
MAX_EXAMPLE_CHARACTERS = 512
MAX_RULES = 256
PLAIN: Final = re.compile(r"[\t\n\r -~]*")
"""Texts of these characters, which are the most, have one reading. Others may have two."""
TAGS: Final = re.compile("[\U000e0020-\U000e007e]")
"""Invisible characters that stand for ASCII characters. A text with tags is read with and without
them, so it may have four readings."""
_WORD = Annotated[str, stated(minLength=1, maxLength=MAX_WORD_CHARACTERS)]
_EXAMPLE = Annotated[str, stated(minLength=1, maxLength=MAX_EXAMPLE_CHARACTERS)]
_LABELS = stated(minProperties=1)


class Detector(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
):
    """Looks at a text, and reports findings."""

    name: Annotated[str, stated(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """The detector's name in findings, unique in the guard."""
    action: Action = "block"
    """What follows from a finding: the text is flagged, its span is redacted, or it is blocked."""


class ClassifierDetector(Detector, frozen=True, kw_only=True, tag="classifier"):
    """Finds windows of the text to which a classifier gives a label."""

    model: str
    """A classifier, as the guard's model names it in `uses`."""
    labels: Annotated[dict[str, Threshold], _LABELS] = {}
    """The lowest score of each label at which a window is a finding. If a backend serves the model,
    and the model does not have one of the labels, the document is refused."""
    expected: Annotated[dict[str, Threshold], _LABELS] = {}
    """Instead of `labels`: a window is a finding if none of these labels reaches its score. For
    example, a model of languages finds texts in other languages."""


class ExampleDetector(Detector, frozen=True, kw_only=True, tag="examples"):
    """Finds windows of the text that are similar to an example."""

    model: str
    """A model of embeddings, as the guard's model names it in `uses`."""
    examples: Annotated[dict[str, tuple[_EXAMPLE, ...]], _LABELS]
    """The examples of each label: together at most 256, each of at most 512 characters."""
    threshold: Threshold
    """The lowest score at which a window is a finding. The score is the highest cosine similarity
    of an example, and the label is the label of this example. Windows are as long as the model
    reads, so a short attack in a long text is not found."""


class EntityDetector(Detector, frozen=True, kw_only=True, tag="entities"):
    """Finds entities, such as names of persons."""

    model: str
    """A model that finds entities, as the guard's model names it in `uses`."""
    labels: Annotated[dict[str, Threshold], _LABELS]
    """The lowest score of each type of entity. A model that finds entities of any type, such as
    GLiNER, looks for these types."""


class FormatDetector(Detector, frozen=True, kw_only=True, tag="formats"):
    """Finds what has a known format, such as card numbers, whose check digits must be right."""

    formats: Annotated[tuple[Format, ...], stated(minItems=1, uniqueItems=True)]
    """The formats to find."""


class PatternDetector(Detector, frozen=True, kw_only=True, tag="pattern"):
    """Finds a regular expression in RE2's syntax, which cannot backtrack."""

    pattern: Annotated[str, stated(minLength=1, maxLength=MAX_PATTERN_CHARACTERS)]
    """The regular expression, of at most 10,000 instructions of RE2."""
    label: str = "MATCH"
    """The label of findings."""


class WordDetector(Detector, frozen=True, kw_only=True, tag="words"):
    """Finds whole words and phrases in any case."""

    words: Annotated[tuple[_WORD, ...], stated(minItems=1, maxItems=MAX_WORDS)]
    """At most 1,000 words and phrases, each of at most 256 characters. Any white space separates
    the words of a phrase."""
    label: str = "WORD"
    """The label of findings."""


class LengthDetector(Detector, frozen=True, kw_only=True, tag="length"):
    """Finds texts that are too long."""

    max_characters: Annotated[int, unit("characters"), msgspec.Meta(ge=1)]
    """The most characters of a text, visible or not."""


ModelDetector = ClassifierDetector | ExampleDetector | EntityDetector
AnyDetector = (
    ClassifierDetector
    | ExampleDetector
    | EntityDetector
    | FormatDetector
    | PatternDetector
    | WordDetector
    | LengthDetector
)


def labels_of(detector: AnyDetector) -> Collection[str]:
    """Return the labels of a detector's findings; none if only its model knows them."""
    if isinstance(detector, ExampleDetector):
        return detector.examples
    if isinstance(detector, ClassifierDetector | EntityDetector):
        return detector.labels
    if isinstance(detector, FormatDetector):
        return [name.upper() for name in detector.formats]
    return ["LENGTH"] if isinstance(detector, LengthDetector) else [detector.label]


def thresholds_of(detector: AnyDetector) -> dict[str, float]:
    """Return the lowest score of each label at which a detector finds it; none without scores."""
    if isinstance(detector, ExampleDetector):
        return dict.fromkeys(detector.examples, detector.threshold)
    return detector.labels if isinstance(detector, ClassifierDetector | EntityDetector) else {}


class DetectorScores(msgspec.Struct, frozen=True, omit_defaults=True):
    """The best scores that labels of a detector have in a text, found or not."""

    best: dict[str, float] = {}
    """The best score of each label: all detectors together have at most 64."""
    least: float = 0.0
    """A label that is not in `best` scored below this."""


class GuardConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A guard: `POST /v1/guard/{name}` looks at texts with its detectors."""

    model: str
    """The model that runs the detectors: one with the algorithm `guard`."""
    detectors: Annotated[tuple[AnyDetector, ...], stated(minItems=1, maxItems=MAX_DETECTORS)]
    """The detectors."""
    on_error: Literal["block", "allow"] = "block"
    """The verdict about a text that could not be looked at completely."""
    message: str = ""
    """What callers are told about a blocked text."""
    allow: Annotated[tuple[_WORD, ...], stated(maxItems=MAX_WORDS)] = ()
    """At most 1,000 spans that are no findings, in any case of letters, such as the company's own
    e-mail address."""
    overlap: Annotated[int, unit("tokens"), msgspec.Meta(ge=0)] = 64
    """Tokens that each window of a long text shares with the window before it, where a classifier
    reads it. Models that find entities have an overlap of their own."""
    holdback: Annotated[int, unit("characters"), msgspec.Meta(ge=0)] | None = None
    """The characters at the end of a streamed answer that callers hold back, because more text may
    complete a finding. By default, they hold back the whole answer until its end."""


class RuleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule of a router: it chooses a target if a detector finds something."""

    detector: str
    """The name of the detector."""
    label: str = ""
    """The label that it must find. Without it, any finding counts."""
    target: str
    """The target, such as the name of a language model."""


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A router: `POST /v1/route/{name}` chooses a target for each text.

    The first rule whose detector finds something decides.
    """

    model: str
    """The model that runs the detectors: one with the algorithm `guard`."""
    detectors: Annotated[tuple[AnyDetector, ...], stated(minItems=1, maxItems=MAX_DETECTORS)]
    """The detectors, as in guards. Their `action` has no effect."""
    rules: Annotated[tuple[RuleConfig, ...], stated(minItems=1, maxItems=MAX_RULES)]
    """At most 256 rules, in the order in which they are tried."""
    default: Annotated[str, stated(minLength=1)]
    """The target if no rule decides."""
    on_error: str = ""
    """The target of a text that could not be looked at completely. Without it, `default`."""
    shadow: str = ""
    """If given, every text gets this target, and the response also says which target the rules
    chose."""
