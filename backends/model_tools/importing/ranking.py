"""Reads how a decoder ranks documents: the words that it answers with, and its template.

A decoder gets a query and a document in a template, and answers with a word such as `yes` or `no`.
Its score is the logit of the one word less the logit of the other. The words are in the module
`LogitScore` of `sentence_transformers` 6 (Apache-2.0). The template is the checkpoint's chat
template, which gets messages with the roles `system` (an instruction), `query` and `document`.

Rows are made of tokens, so the fixed parts of the template become special tokens of the tokenizer.
"""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from sluicegate.backends.errors import StartProblem
from sluicegate.backends.model_tools.importing import chat_template
from sluicegate.backends.model_tools.importing.class_tokenizer import ClassTokenizer
from sluicegate.backends.repository.manifest import RankingTemplate
from sluicegate.backends.repository.sentence_modules import read_logit_score, read_object
from sluicegate.backends.repository.sentence_settings import read_limits, read_prompts
from sluicegate.backends.repository.tokenizer_files import CONFIG as TOKENIZER_CONFIG

_CAUSAL = "ForCausalLM"
# The processor time in seconds and the memory in bytes that a chat template may need, and its
# timeout in seconds.
_LIMITS, _LONGEST = (2, 512 * 1024 * 1024), 30.0
TEMPLATE_FILE = "chat_template.jinja"
_WORDS = ("yes", "no")
# The template in the model card of Qwen3-Reranker-0.6B (huggingface.co/Qwen/Qwen3-Reranker-0.6B),
# for revisions of the checkpoint without a chat template for ranking.
_QWEN3 = (
    (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: "
    ),
    "\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
_QWEN3_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# Texts with which a template is tried. None of them occurs in a template.
_SLOTS = ("\ue000instruction\ue000", "\ue000query\ue000", "\ue000document\ue000")
_PROBES = (
    *("a", " two words", "ends with a mark?", "line\n", "\n\nline", "(", "x "),
    *("Größe 😀", "1.", "-"),
)
Render = Callable[[str | None, str, str], str]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the ids of the words that a decoder answers with, and its template.

    Without `words`, the model has a head instead. `fixed` are the parts of each row before, between
    and after the two texts.
    """

    words: tuple[int, ...] = ()
    template: RankingTemplate | None = None
    fixed: tuple[str, str, str] = ("", "", "")

    def complete(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a `model.yaml`, with those that say how the model ranks."""
        words = {"labels": ["relevant"], "tasks": ["rerank"]} if self.words else {}
        if self.template is None:
            return {**words, **fields}
        own = fields.get("template") or {}
        if isinstance(own, dict):
            own = {**msgspec.to_builtins(self.template), **own}
        return {**words, **fields, "template": own}

    def fill_tokenizer(self, text: str) -> str:
        """Return a `tokenizer.json` whose rows of pairs have the fixed parts."""
        if self.template is None:
            return text
        tokenizer, document = Tokenizer.from_str(text), json.loads(text)
        single: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
        pair: list[dict[str, Any]] = []
        known: dict[str, Any] = {}
        for name, part, sequence in zip("012", self.fixed, ("A", "B", ""), strict=True):
            found = tokenizer.encode(part, add_special_tokens=False)
            if found.ids:
                known[name] = {"id": name, "ids": found.ids, "tokens": found.tokens}
                pair.append({"SpecialToken": {"id": name, "type_id": 0}})
            if sequence:
                pair.append({"Sequence": {"id": sequence, "type_id": 0}})
        document["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": known,
        }
        return Tokenizer.from_str(json.dumps(document)).to_str()


def find_ranking(
    folder: Path, config: Mapping[str, Any], fields: Mapping[str, Any], tokenizer: ClassTokenizer
) -> Ranking | None:
    """Return how a folder's model ranks by words or by a template; `None` if it does not.

    A decoder without modules ranks by `yes` and `no` if the field `tasks` is `[rerank]`.

    Raises:
        StartProblem: the template cannot be read, or the tokenizer has no word for an answer.
        ModelProblem: a file cannot be read, or has a setting that is not supported.
    """

    def files(name: str) -> Path:
        return folder / name

    limits, words = read_limits(files), read_logit_score(files)
    has_modules = files("modules.json").is_file()
    is_causal = str((config.get("architectures") or [""])[0]).endswith(_CAUSAL)
    chats = limits is not None and limits.chats
    if words is None and is_causal and not has_modules and fields.get("tasks") == ["rerank"]:
        words, chats = _word_ids(folder, tokenizer), True
    if words is None and not chats:
        return None
    if not chats:
        return Ranking(words=words or ())
    prompted = limits is not None and limits.add_generation_prompt
    parts, usual = _read_template(folder, config, add_generation_prompt=prompted)
    ranking = _split(parts, read_prompts(files).default or usual, words or ())
    _try(folder, ranking, parts, tokenizer.load())
    return ranking


def _word_ids(folder: Path, tokenizer: ClassTokenizer) -> tuple[int, ...]:
    vocabulary = tokenizer.load().get_vocab()
    missing = next((word for word in _WORDS if word not in vocabulary), None)
    if missing is not None:
        raise StartProblem(f"`{folder}`: the tokenizer has no token `{missing}` to rank by")
    return tuple(vocabulary[word] for word in _WORDS)


def _read_template(
    folder: Path, config: Mapping[str, Any], *, add_generation_prompt: bool
) -> tuple[tuple[str, ...], str]:
    """Return the parts of the template around its three slots, and the usual instruction."""
    source = _template_source(folder)
    if source is not None:
        render = _renderer(folder, source, add_generation_prompt=add_generation_prompt)
        parts = _parts(render(*_SLOTS), _SLOTS)
        if parts is not None:
            return parts, _usual(render, parts)
        parts = _parts(render(None, *_SLOTS[1:]), _SLOTS[1:])
        if parts is not None:
            return (parts[0], "", *parts[1:]), ""
    if config.get("model_type") == "qwen3" and not (folder / "modules.json").is_file():
        return _QWEN3, _QWEN3_INSTRUCTION
    raise StartProblem(
        f"`{folder}`: the chat template must show an instruction (role `system`), a query (role "
        "`query`) and a document (role `document`) once each, in this order"
    )


def _template_source(folder: Path) -> str | None:
    if (folder / TEMPLATE_FILE).is_file():
        try:
            return (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartProblem(f"cannot read `{folder / TEMPLATE_FILE}`: {error}") from None
    found = read_object(folder / TOKENIZER_CONFIG).get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _renderer(folder: Path, source: str, *, add_generation_prompt: bool) -> Render:
    """Return a function that renders a chat template, in a process with limits."""
    if importlib.util.find_spec("jinja2") is None:
        raise StartProblem(
            f"`{folder}` has a chat template, which needs the package `jinja2`; install it"
        )
    given = read_object(folder / TOKENIZER_CONFIG)
    tokens = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in given.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }

    def render(instruction: str | None, query: str, document: str) -> str:
        messages = [{"role": "system", "content": instruction}] if instruction is not None else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": document}]
        values = {
            **tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        command = [sys.executable, "-I", chat_template.__file__, *map(str, _LIMITS)]
        asked = json.dumps({"source": source, "values": values}).encode()
        try:
            done = subprocess.run(  # noqa: S603 - our own program
                command, input=asked, capture_output=True, timeout=_LONGEST, check=False
            )
            text, status = done.stdout.decode(errors="replace"), done.returncode
        except subprocess.TimeoutExpired:
            text, status = "", -signal.SIGXCPU
        if status == -signal.SIGXCPU:
            text = f"it does not end within {_LIMITS[0]} s of processor time; shorten it"
        elif status < 0:
            name = signal.Signals(-status).name
            text = f"{name} ended its process; free memory, or simplify the template"
        if status:
            raise StartProblem(f"`{folder}`: the chat template fails: {text}")
        return text

    return render


def _parts(text: str, slots: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the text around the slots; `None` if a slot is missing, repeated or misplaced."""
    parts = re.split("|".join(map(re.escape, slots)), text)
    found = re.findall("|".join(map(re.escape, slots)), text)
    return tuple(parts) if tuple(found) == slots else None


def _usual(render: Render, parts: tuple[str, ...]) -> str:
    """Return the instruction that the template itself uses."""
    text = render(None, *_SLOTS[1:])
    before, after = parts[0], f"{parts[1]}{_SLOTS[1]}{parts[2]}"
    place = text.find(after)
    return text[len(before) : place] if text.startswith(before) and place >= 0 else ""


def _split(parts: tuple[str, ...], instruction: str, words: tuple[int, ...]) -> Ranking:
    """Divide the template into fixed tokens, and texts around the slots.

    Spaces beside a slot may become one token with a word of the slot. Therefore they belong to the
    texts, not to the fixed tokens.
    """
    before, query, between, after = parts
    start = before.rstrip(" ") or before
    middle = between.strip()
    left, right = between.split(middle, 1) if middle else (between, "")
    template = RankingTemplate(
        query=f"{before[len(start) :]}{{instruction}}{query}{{query}}{left}",
        document=f"{right}{{document}}",
        instruction=instruction,
    )
    return Ranking(words=words, template=template, fixed=(start, middle, after))


def _try(folder: Path, ranking: Ranking, parts: tuple[str, ...], tokenizer: Tokenizer) -> None:
    """Check that rows of fixed tokens and texts have the tokens of the whole text.

    Raises:
        StartProblem: the tokens differ.
    """
    template = ranking.template
    if template is None:
        return
    filled = Tokenizer.from_str(ranking.fill_tokenizer(tokenizer.to_str()))
    for probe in _PROBES:
        for other in _PROBES:
            given = (probe, other, probe)
            whole = "".join(a + b for a, b in zip(parts, (*given, ""), strict=True))
            pair = template.fill(query=other, document=probe, instruction=probe)
            if filled.encode(*pair).ids != tokenizer.encode(whole, add_special_tokens=False).ids:
                raise StartProblem(
                    f"`{folder}`: the texts of the chat template join the tokens of a query or "
                    "document, which is not supported"
                )
