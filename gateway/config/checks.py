"""Checks names, references and combinations of the values in a configuration document.

The structure, types and ranges of the document must already be right.
"""

import datetime as dt
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from sluicegate.gateway.config.document import (
    BackendConfig,
    CorsConfig,
    Document,
    PriceConfig,
    RegionConfig,
)
from sluicegate.gateway.config.pools import pool_findings
from sluicegate.gateway.config.shape import LARGEST_NUMBER, ConfigFinding
from sluicegate.gateway.config.spelling import closest
from sluicegate.gateway.config.tree import Path
from sluicegate.gateway.periods import PERIODS
from sluicegate.gateway.types import CONCURRENT, REQUEST_UNITS, WORK_UNITS, Rule
from sluicegate.wire.guards import (
    MAX_DETECTORS,
    MAX_EXAMPLE_CHARACTERS,
    MAX_EXAMPLES,
    MAX_RULES,
    MAX_WORD_CHARACTERS,
    MAX_WORDS,
    AnyDetector,
    ClassifierDetector,
    EntityDetector,
    ExampleDetector,
    FormatDetector,
    GuardConfig,
    ModelDetector,
    PatternDetector,
    RouterConfig,
    WordDetector,
    labels_of,
)
from sluicegate.wire.patterns import compile_pattern

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})")
_ORIGIN = re.compile(
    r"https?://[a-z0-9]([a-z0-9.-]{0,252})(:[0-9]{1,5})?|[a-z-]+extension://[a-z0-9-]+"
)
_TARGET = re.compile(r"[!-~]([ -~]*[!-~])?")
_RULE_NAME = re.compile(r"[A-Za-z0-9_]{1,32}")
_CURRENCY = re.compile(r"[A-Z]{3}")
_LAST_PORT = 65_535
ANY_MODEL = "*"
ANY_ORIGIN = "*"
ORIGIN_RULE = "must be an origin such as `https://example.com`, in lower case, without a path"
# A message lists at most this many labels.
_MAX_SHOWN = 50
_UNITS = (*REQUEST_UNITS, *WORK_UNITS)
_NAME_RULE = "must be 1 to 64 letters, digits, `.`, `_` or `-`, the first a letter or digit"


def findings(document: Document) -> Iterator[ConfigFinding]:
    """Yield each problem of `document`, in the order of the document."""
    yield from _regions(document.regions)
    yield from pool_findings(document)
    for name, entry in document.models.items():
        yield from _named(name, ("models", name))
        yield from _model_limits(entry.limits, ("models", name, "limits"))
    for path, policy in _policies(document):
        yield from _named(str(path[-1]), path)
        yield from _policy(policy, path)
    yield from _deadline(document)
    yield from _cors(document.cors)
    yield from rule_findings(document.limits.tenant, ("limits", "tenant"))
    yield from rule_findings(document.limits.key, ("limits", "key"))
    yield from _prices(document.prices)


def models_named(document: Document) -> Iterator[str]:
    """Yield every model that `document` names."""
    yield from document.models
    yield from (name for _, name in _references(document))


def unknown_models(document: Document, known: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Yield the path and the name of each unknown model in `document`.

    A model is unknown if `known` does not contain it and the document does not mark it as planned.
    """
    planned = {name for name, entry in document.models.items() if entry.planned}
    for name in document.models:
        if name not in known and name not in planned:
            yield ("models", name), name
    for path, name in _references(document):
        if name not in known and name not in planned:
            yield path, name


def unknown_labels(
    document: Document, known: Mapping[str, Collection[str]]
) -> Iterator[tuple[Path, str]]:
    """Yield the path and the problem of each label that its model does not have.

    Moderation, guards and routers name labels. `known` maps models to their labels. Models that are
    not in `known` are skipped.
    """
    for path, name, labels in _labelled(document):
        has = known.get(name)
        for label in labels if has is not None else ():
            if has and label not in has:
                shown = [f"`{one}`" for one in has]
                more = f" and {len(has) - _MAX_SHOWN} more" if len(has) > _MAX_SHOWN else ""
                listed = ", ".join(shown[:_MAX_SHOWN]) + more
                meant = closest(label, has)
                hint = f"; did you mean `{meant}`?" if meant else "."
                yield (*path, label), f"the model has no label `{label}`{hint} It has {listed}"
            elif not has:
                yield path, "the model has no labels of its own; name a classifier"


def labelled_models(document: Document) -> list[str]:
    """Return the models whose labels `unknown_labels` checks."""
    return list(dict.fromkeys(name for _, name, labels in _labelled(document) if labels))


def _labelled(document: Document) -> Iterator[tuple[Path, str, Collection[str]]]:
    """Yield the path, the model and the labels of each part that names labels of a classifier."""
    for name, entry in document.models.items():
        yield ("models", name, "moderation"), name, entry.moderation
    for here, policy in _policies(document):
        for path, detector in _model_detectors(policy, here):
            if isinstance(detector, ClassifierDetector):
                yield (*path, "labels"), detector.model, detector.labels
                yield (*path, "expected"), detector.model, detector.expected


def _references(document: Document) -> Iterator[tuple[Path, str]]:
    for kind in ("tenant", "key"):
        for index, rule in enumerate(getattr(document.limits, kind)):
            if rule.model:
                yield ("limits", kind, index, "model"), rule.model
    for here, policy in _policies(document):
        yield (*here, "model"), policy.model
        for path, detector in _model_detectors(policy, here):
            yield (*path, "model"), detector.model
    for index, price in enumerate(document.prices):
        if price.model != ANY_MODEL:
            yield ("prices", index, "model"), price.model


def _policies(document: Document) -> Iterator[tuple[Path, GuardConfig | RouterConfig]]:
    """Yield the path and the declaration of each guard and router."""
    for name, guard in document.guards.items():
        yield ("guards", name), guard
    for name, router in document.routers.items():
        yield ("routers", name), router


def _model_detectors(
    policy: GuardConfig | RouterConfig, path: Path
) -> Iterator[tuple[Path, ModelDetector]]:
    for index, detector in enumerate(policy.detectors):
        if isinstance(detector, ModelDetector):
            yield (*path, "detectors", index), detector


def rule_findings(rules: Iterable[Rule], path: Path) -> Iterator[ConfigFinding]:
    """Yield each problem of a list of limits. `path` is the place of the list in the document."""
    rules = tuple(rules)
    for index, rule in enumerate(rules):
        here = (*path, index)
        if not _RULE_NAME.fullmatch(rule.name):
            detail = f"`{rule.name}` must be 1 to 32 letters, digits or `_`"
            yield ConfigFinding((*here, "name"), detail)
        if rule.unit not in _UNITS:
            known = "`, `".join(_UNITS)
            yield ConfigFinding((*here, "unit"), f"`{rule.unit}` must be one of `{known}`")
        if rule.capacity < 1:
            detail = f"must be at least 1, got {rule.capacity}"
            yield ConfigFinding((*here, "capacity"), detail)
        elif rule.capacity > LARGEST_NUMBER:
            yield ConfigFinding((*here, "capacity"), f"must be at most {LARGEST_NUMBER}")
        yield from _refill(rule, here)
    yield from _unique([rule.name for rule in rules], path, "name")


def _model_limits(rules: tuple[Rule, ...], path: Path) -> Iterator[ConfigFinding]:
    yield from rule_findings(rules, path)
    for index, rule in enumerate(rules):
        if rule.model:
            yield ConfigFinding(
                (*path, index, "model"), "leave out `model`: these limits apply to this model only"
            )


def _refill(rule: Rule, here: Path) -> Iterator[ConfigFinding]:
    """Yield each problem of a rule's refill, which is by time, by period, or as requests end."""
    if rule.period not in ("", *PERIODS):
        known = "` or `".join(PERIODS)
        yield ConfigFinding((*here, "period"), f"`{rule.period}` must be `{known}`, or left out")
    elif rule.unit == CONCURRENT:
        if rule.window or rule.period:
            detail = "`concurrent` units return when work ends: leave out `window` and `period`"
            yield ConfigFinding((*here, "unit"), detail)
    elif rule.period and rule.window:
        yield ConfigFinding(
            (*here, "window"), "a rule has either a `window` or a `period`: leave one out"
        )
    elif not rule.period and not rule.window > 0:
        detail = "must be more than 0 seconds; for a quota, set `period` instead"
        yield ConfigFinding((*here, "window"), detail)
    elif math.isinf(rule.window):
        yield ConfigFinding((*here, "window"), "must be a number of seconds")


def _policy(policy: GuardConfig | RouterConfig, path: Path) -> Iterator[ConfigFinding]:
    if not 0 < len(policy.detectors) <= MAX_DETECTORS:
        yield ConfigFinding((*path, "detectors"), f"must have 1 to {MAX_DETECTORS} detectors")
    yield from _unique([one.name for one in policy.detectors], (*path, "detectors"), "name")
    for index, detector in enumerate(policy.detectors):
        here = (*path, "detectors", index)
        yield from _named(detector.name, (*here, "name"))
        if isinstance(detector, ExampleDetector):
            yield from _examples(detector, (*here, "examples"))
        else:
            yield from _detector(detector, here)
    if isinstance(policy, GuardConfig):
        yield from _words(policy.allow, (*path, "allow"))
    else:
        yield from _rules(policy, path)


def _rules(router: RouterConfig, path: Path) -> Iterator[ConfigFinding]:
    """Yield each problem of a router's rules and targets."""
    if not 0 < len(router.rules) <= MAX_RULES:
        yield ConfigFinding((*path, "rules"), f"must have 1 to {MAX_RULES} rules")
    yield from _target(router.default, (*path, "default"))
    for field in ("on_error", "shadow"):
        if target := getattr(router, field):
            yield from _target(target, (*path, field))
    detectors = {one.name: one for one in router.detectors}
    for index, rule in enumerate(router.rules):
        here = (*path, "rules", index)
        yield from _target(rule.target, (*here, "target"))
        if rule.detector not in detectors:
            yield ConfigFinding(
                (*here, "detector"),
                f"names no detector of the router: {_unknown(rule.detector, detectors)}",
            )
            continue
        labels = labels_of(detectors[rule.detector])
        if rule.label and labels and rule.label not in labels:
            yield ConfigFinding(
                (*here, "label"),
                f"the detector does not look for this label: {_unknown(rule.label, labels)}",
            )


def _target(target: str, path: Path) -> Iterator[ConfigFinding]:
    if not target:
        yield ConfigFinding(path, "needs a target")
    elif not _TARGET.fullmatch(target):
        # Targets become values of headers.
        yield ConfigFinding(path, "must be visible ASCII characters, with spaces only between them")


def _unknown(name: str, known: Collection[str]) -> str:
    """Return what to tell of a name that is not in `known`."""
    meant = closest(name, known)
    return f"`{name[:80]}`" + (f"; did you mean `{meant}`?" if meant else "")


def _detector(detector: AnyDetector, path: Path) -> Iterator[ConfigFinding]:
    if isinstance(detector, ClassifierDetector):
        if bool(detector.labels) == bool(detector.expected):
            yield ConfigFinding(path, "needs either `labels` or `expected`")
    elif isinstance(detector, EntityDetector) and not detector.labels:
        yield ConfigFinding((*path, "labels"), "needs at least one label")
    elif isinstance(detector, FormatDetector) and not detector.formats:
        yield ConfigFinding((*path, "formats"), "needs at least one format")
    elif isinstance(detector, WordDetector):
        yield from _words(detector.words, (*path, "words"))
        if not detector.words:
            yield ConfigFinding((*path, "words"), "needs at least one word")
    elif isinstance(detector, PatternDetector) and (problem := _pattern(detector.pattern)):
        yield ConfigFinding((*path, "pattern"), problem)


def _examples(detector: ExampleDetector, path: Path) -> Iterator[ConfigFinding]:
    if not 0 < sum(map(len, detector.examples.values())) <= MAX_EXAMPLES:
        yield ConfigFinding(path, f"must have 1 to {MAX_EXAMPLES} examples")
    for label, texts in detector.examples.items():
        if not texts:
            yield ConfigFinding((*path, label), "needs at least one example")
        yield from _words(texts, (*path, label), longest=MAX_EXAMPLE_CHARACTERS)


def _words(
    words: tuple[str, ...], path: Path, *, longest: int = MAX_WORD_CHARACTERS
) -> Iterator[ConfigFinding]:
    if len(words) > MAX_WORDS:
        yield ConfigFinding(path, f"must have at most {MAX_WORDS} entries")
    for index, word in enumerate(words):
        if len(word) > longest:
            yield ConfigFinding((*path, index), f"has more than {longest} characters")
        elif not any(each.isprintable() and not each.isspace() for each in word):
            yield ConfigFinding((*path, index), "has no visible character; it would find nothing")


def _pattern(pattern: str) -> str:
    """Return the problem of a regular expression, or an empty text."""
    try:
        found = compile_pattern(pattern)
    except ValueError as error:
        return str(error)
    return "matches an empty text; it would find nothing" if found.fullmatch("") else ""


def _regions(regions: tuple[RegionConfig, ...]) -> Iterator[ConfigFinding]:
    owners: dict[str, Path] = {}
    for index, region in enumerate(regions):
        here: Path = ("regions", index)
        yield from _named(region.name, (*here, "name"))
        for pool_index, pool in enumerate(region.pools):
            pool_path = (*here, "pools", pool_index)
            yield from _named(pool.name, (*pool_path, "name"))
            for backend_index, backend in enumerate(pool.backends):
                path = (*pool_path, "backends", backend_index)
                yield from _named(backend.id, (*path, "id"))
                if backend.id in owners:
                    yield ConfigFinding(
                        (*path, "id"), f"the id `{backend.id}` is used by another backend"
                    )
                owners[backend.id] = path
                yield from _place(backend, path)
                yield from _server_name(backend, (*path, "server_name"))
        yield from _unique([pool.name for pool in region.pools], (*here, "pools"), "name")
    yield from _unique([region.name for region in regions], ("regions",), "name")


def _deadline(document: Document) -> Iterator[ConfigFinding]:
    deadline = document.deadline
    if deadline.default > deadline.maximum:
        yield ConfigFinding(("deadline", "default"), "must not be longer than `deadline.maximum`")


def is_origin(text: str) -> bool:
    """Return whether `text` is a valid value of the header `Origin`."""
    return _ORIGIN.fullmatch(text) is not None


def _cors(cors: CorsConfig) -> Iterator[ConfigFinding]:
    for index, origin in enumerate(cors.origins):
        if origin != ANY_ORIGIN and not is_origin(origin):
            yield ConfigFinding(("cors", "origins", index), f"`{origin[:80]}` {ORIGIN_RULE}")
    for tenant, origins in cors.tenants.items():
        for index, origin in enumerate(origins):
            if not is_origin(origin):
                detail = f"`{origin[:80]}` {ORIGIN_RULE}"
                yield ConfigFinding(("cors", "tenants", tenant, index), detail)


def _prices(prices: tuple[PriceConfig, ...]) -> Iterator[ConfigFinding]:
    seen: set[tuple[str, str]] = set()
    for index, price in enumerate(prices):
        here: Path = ("prices", index)
        if not _is_date(price.since):
            yield ConfigFinding(
                (*here, "since"), f"`{price.since}` must be a date such as `2026-01-31`"
            )
        if not _CURRENCY.fullmatch(price.currency):
            detail = f"`{price.currency}` must be three capital letters such as `EUR`"
            yield ConfigFinding((*here, "currency"), detail)
        if (price.model, price.since) in seen:
            detail = f"`{price.model}` has another price from {price.since} on"
            yield ConfigFinding((*here, "since"), detail)
        seen.add((price.model, price.since))


def _is_date(text: str) -> bool:
    try:
        return dt.date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _url(url: str, path: Path) -> Iterator[ConfigFinding]:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    else:
        valid = valid and not (parts.query or parts.fragment or parts.username)
    if not valid:
        yield ConfigFinding(path, "must be a URL such as `http://10.0.0.5:9000`")


def _place(backend: BackendConfig, path: Path) -> Iterator[ConfigFinding]:
    """Yield each problem of a backend's address, which is a URL or a DNS name."""
    if not backend.dns:
        yield from _url(backend.url, (*path, "url"))
        if backend.tls:
            yield ConfigFinding((*path, "tls"), "leave out `tls`: the scheme of `url` decides")
        return
    if backend.url:
        yield ConfigFinding(
            (*path, "dns"), "a backend has either a `url` or a `dns`: leave one out"
        )
    host, _, port = backend.dns.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) <= _LAST_PORT
    if not _HOST.fullmatch(host) or not is_port:
        detail = "must be a name and a port such as `backends.default.svc.cluster.local:8100`"
        yield ConfigFinding((*path, "dns"), detail)


def _server_name(backend: BackendConfig, path: Path) -> Iterator[ConfigFinding]:
    name = backend.server_name
    if name and not _HOST.fullmatch(name):
        yield ConfigFinding(
            path, f"`{name[:80]}` must be a host name such as `backends.example.com`"
        )
    elif name and not (backend.tls or backend.url.startswith("https://")):
        detail = "needs TLS: begin the URL with `https://`, or set `tls`"
        yield ConfigFinding(path, detail)


def _named(name: str, path: Path) -> Iterator[ConfigFinding]:
    if not _NAME.fullmatch(name):
        yield ConfigFinding(path, f"`{name[:80]}` {_NAME_RULE}")


def _unique(names: list[str], path: Path, field: str) -> Iterator[ConfigFinding]:
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for name in sorted(repeated):
        index = len(names) - 1 - names[::-1].index(name)
        yield ConfigFinding((*path, index, field), f"`{name}` is given twice")
