"""Builds the algorithms of each model in the repository from its `model.yaml`."""

from collections.abc import Mapping, Sequence

import msgspec

from sluicegate.backends.algorithms.answering import FindAnswers
from sluicegate.backends.algorithms.base import Algorithm, Algorithms, ModelAlgorithms
from sluicegate.backends.algorithms.budget import Budget
from sluicegate.backends.algorithms.classify import Classify
from sluicegate.backends.algorithms.custom import Custom
from sluicegate.backends.algorithms.embedding import Embed, Rerank
from sluicegate.backends.algorithms.entities import Entities
from sluicegate.backends.algorithms.hosts import AlgorithmHosts
from sluicegate.backends.algorithms.labelled_relations import LabelledRelations
from sluicegate.backends.algorithms.labelled_spans import LabelledSpans, LabelledTexts
from sluicegate.backends.algorithms.labels import Labeller
from sluicegate.backends.algorithms.long_document import LongEmbed
from sluicegate.backends.algorithms.outputs import EmbedOutputs, OutputReader, RankByOutputs
from sluicegate.backends.algorithms.pairs import CrossEncode, EntailmentZeroShot, MultipleChoice
from sluicegate.backends.algorithms.recipes import CUSTOM, RECIPES
from sluicegate.backends.algorithms.split import split_tasks
from sluicegate.backends.algorithms.tokens import token_algorithms
from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.pipelines.word_rows import WordFormat
from sluicegate.backends.pipelines.words import schema_word
from sluicegate.backends.repository.catalogue import Catalogue
from sluicegate.backends.repository.manifest import (
    AlgorithmManifest,
    ClassifierManifest,
    EncoderManifest,
    GraphManifest,
    HeadManifest,
    SpanManifest,
    SplitManifest,
    builds_on,
)
from sluicegate.backends.repository.model import Model
from sluicegate.wire.protocol import EmbedOutput, ModelInfo, Task

# The version of the layers below every algorithm: tokenization, pipelines, batching, executors.
# Increase it when a change of these layers changes results.
_FOUNDATION_VERSION = 2
_SPLIT = "split"
# The adapters that rank documents; the second pair is that of jina-embeddings-v3.
_RANKED_BY = (("query", "document"), ("retrieval.query", "retrieval.passage"))


def build_served_model(
    model: Model, built: Mapping[str, ModelAlgorithms], hosts: AlgorithmHosts
) -> ModelAlgorithms:
    """Return the algorithms of a model.

    `built` has the models that come before this model in the catalogue, apart from broken ones.

    Raises:
        ModelProblem: the model builds on a broken model, or its `model.yaml` is invalid.
    """
    manifest = model.manifest
    for name in builds_on(manifest):
        if name not in built:
            raise ModelProblem(f"it builds on `{name}`, which is broken")
    below = [built[name] for name in builds_on(manifest)]
    _check_shared(model, below)
    if isinstance(manifest, EncoderManifest):
        return _serve_encoder(model, manifest)
    if isinstance(manifest, ClassifierManifest):
        return _serve_classifier(model, manifest)
    if isinstance(manifest, SpanManifest):
        return _serve_spans(model, manifest)
    if isinstance(manifest, HeadManifest):
        return _serve_head(model, manifest, below)
    if isinstance(manifest, SplitManifest):
        return _serve_split(model, manifest, below)
    return _serve_algorithm(model, manifest, below, hosts)


def _check_shared(model: Model, below: Sequence[ModelAlgorithms]) -> None:
    """Refuse a model `below` with a traffic split, because its revisions may differ in labels.

    Exception: a model owner's algorithm, which only uses results, can build on such a model.
    """
    manifest = model.manifest
    if isinstance(manifest, AlgorithmManifest) and manifest.algorithm == CUSTOM:
        return
    for info in (served_model.info for served_model in below):
        if info.algorithm == _SPLIT:
            raise ModelProblem(
                f"{model.folder}: it cannot build on `{info.name}`, which has a traffic split; "
                f"name a revision, such as `{info.name}@1`"
            )


def describe(catalogue: Catalogue) -> tuple[list[ModelInfo], dict[str, str]]:
    """Return the models that a catalogue can serve, and the problem of each broken model.

    No model is loaded.
    """
    served_models: dict[str, ModelAlgorithms] = {}
    problems = dict(catalogue.problems)
    with AlgorithmHosts() as hosts:
        for name, model in catalogue.models.items():
            try:
                served_models[name] = build_served_model(model, served_models, hosts)
            except ModelProblem as error:
                problems[name] = str(error)
    return [served_model.info for served_model in served_models.values()], problems


def _serve(
    model: Model,
    algorithms: Algorithms,
    below: Sequence[ModelAlgorithms],
    *,
    algorithm: str,
    labels: list[str] | None = None,
    dimensions: int | None = None,
    prompts: Sequence[str] = (),
    outputs: Sequence[EmbedOutput] = (),
) -> ModelAlgorithms:
    """Return a model whose algorithms use the model's own graph or the models `below`."""
    manifest, infos = model.manifest, [served_model.info for served_model in below]
    if isinstance(manifest, GraphManifest):
        profile, max_tokens, encoder = manifest.profile, manifest.max_tokens, model.name
        max_words = manifest.max_words if isinstance(manifest, SpanManifest) else 0
    else:
        # The models below may differ in precision, so list every profile.
        profile = "+".join(sorted({info.profile for info in infos}))
        max_tokens = min(info.max_tokens for info in infos)
        max_words = min((info.max_words for info in infos if info.max_words), default=0)
        encoder = below[0].encoder
    described = infos[0] if isinstance(manifest, SplitManifest) else manifest
    info = ModelInfo(
        name=model.name,
        revision=model.revision,
        profile=profile,
        tasks=list(algorithms),
        algorithm=algorithm,
        algorithm_version=combined_version(algorithms),
        labels=labels,
        dimensions=dimensions,
        max_tokens=max_tokens,
        max_words=max_words,
        description=described.description,
        demonstration=described.demonstration,
        serving=model.serving,
        shows_tokens=True,
        prompts=tuple(prompts),
        outputs=tuple(outputs),
    )
    return ModelAlgorithms(
        info=info, encoder=encoder, algorithms=algorithms, tokens=token_algorithms(encoder)
    )


def _serve_encoder(model: Model, manifest: EncoderManifest) -> ModelAlgorithms:
    named, outputs = manifest.named_prompts, list[EmbedOutput]()
    plain = (manifest.prompts.get("query", ""), manifest.prompts.get("document", ""))
    # Vectors of two adapters can be compared only if these were trained together.
    pair = next((pair for pair in _RANKED_BY if {*pair} <= {*manifest.adapters}), None)
    prompts = plain if pair is None else (named[pair[0]], named[pair[1]])
    # `None` if the manifest has no prompt at all.
    ranked_by = prompts if any((manifest.prompt, *prompts)) else None
    if manifest.sparse is not None or manifest.multi_vector is not None:
        reader = OutputReader(model=model.name, manifest=manifest)
        outputs = reader.layout.outputs
        available: Algorithms = {
            Task.EMBED: EmbedOutputs(reader, named_prompts=named),
            Task.RERANK: RankByOutputs(reader, own_prompts=ranked_by),
        }
    else:
        available = {
            Task.EMBED: Embed(
                model=model.name, dimensions=manifest.dimensions, named_prompts=named
            ),
            Task.RERANK: Rerank(model=model.name, own_prompts=ranked_by),
        }
    algorithms: Algorithms = {task: available[task] for task in manifest.tasks}
    return _serve(
        model,
        algorithms,
        [],
        algorithm="outputs" if outputs else "embedding",
        dimensions=manifest.dimensions,
        prompts=list(named) if Task.EMBED in algorithms else [],
        outputs=outputs,
    )


def _serve_classifier(model: Model, manifest: ClassifierManifest) -> ModelAlgorithms:
    try:
        algorithms = {
            task: _answer_by_logits(task, model.name, manifest) for task in manifest.tasks
        }
    except ValueError as error:
        raise ModelProblem(f"{model.folder}: {error}") from None
    # The logits of `answer` are no labels.
    labels = None if Task.ANSWER in algorithms else manifest.labels
    return _serve(model, algorithms, [], algorithm="classifier", labels=labels)


def _answer_by_logits(
    task: Task, name: str, manifest: ClassifierManifest | HeadManifest
) -> Algorithm:
    """Return the algorithm that answers a task from the logits of a graph or head."""
    labels, function = manifest.labels, manifest.function
    if task is Task.ANSWER:
        marked = manifest.no_answer_token if isinstance(manifest, ClassifierManifest) else None
        return FindAnswers(model=name, no_answer_token=marked)
    if task is Task.ENTITIES:
        return Entities(model=name, labels=labels, function=function)
    if task is Task.ZERO_SHOT:
        return EntailmentZeroShot(model=name, labels=labels)
    if task is Task.CHOOSE:
        return MultipleChoice(model=name)
    if task is Task.RERANK:
        return _cross_encoder(name, manifest)
    return Classify(model=name, labels=labels, function=function)


def _cross_encoder(name: str, manifest: ClassifierManifest | HeadManifest) -> CrossEncode:
    if isinstance(manifest, HeadManifest):
        return CrossEncode(model=name)
    return CrossEncode(model=name, function=manifest.rerank_function, template=manifest.template)


def _serve_spans(model: Model, manifest: SpanManifest) -> ModelAlgorithms:
    form = msgspec.convert(manifest, WordFormat, from_attributes=True)
    most, name = manifest.max_labels, model.name
    if manifest.schema:
        schema_word()  # The first call takes long, so it must not be in a request.
    relations = None
    if (related := manifest.relations) is not None:
        relations = LabelledRelations(
            model=name,
            form=msgspec.structs.replace(form, label_token=related.label_token, has_relations=True),
            max_labels=related.max_labels,
            max_count=related.max_count,
        )
    spans = LabelledSpans(model=name, form=form, max_labels=most, relations=relations)
    algorithms: Algorithms = {Task.ENTITIES: spans}
    if (classes := manifest.classes) is not None:
        form = msgspec.structs.replace(form, label_token=classes.label_token, schema=classes.schema)
        algorithms[Task.ZERO_SHOT] = LabelledTexts(model=name, form=form, max_labels=most)
    return _serve(model, algorithms, [], algorithm="labelled-spans")


def _serve_head(
    model: Model, manifest: HeadManifest, below: Sequence[ModelAlgorithms]
) -> ModelAlgorithms:
    algorithms = {manifest.task: _answer_by_logits(manifest.task, model.name, manifest)}
    name = manifest.task.value
    return _serve(model, algorithms, below, algorithm=name, labels=manifest.labels)


def _serve_split(
    model: Model, manifest: SplitManifest, below: Sequence[ModelAlgorithms]
) -> ModelAlgorithms:
    algorithms = split_tasks(
        model.name, [served_model.algorithms for served_model in below], manifest.weights
    )
    if not algorithms:
        raise ModelProblem(f"{model.folder}: its revisions have no task in common")
    first = below[0].info
    return _serve(
        model,
        algorithms,
        below,
        algorithm=_SPLIT,
        labels=first.labels,
        dimensions=first.dimensions,
        prompts=first.prompts,
    )


def _serve_algorithm(
    model: Model,
    manifest: AlgorithmManifest,
    below: Sequence[ModelAlgorithms],
    hosts: AlgorithmHosts,
) -> ModelAlgorithms:
    recipe = RECIPES.get(manifest.algorithm)
    if recipe is None and manifest.algorithm != CUSTOM:
        raise ModelProblem(
            f"{model.folder}: algorithm `{manifest.algorithm}` is unknown; use one of "
            f"{', '.join(f'`{name}`' for name in (*RECIPES, CUSTOM))}"
        )
    try:
        if recipe is None:
            available = _build_custom(model, manifest, below, hosts)
        else:
            available = msgspec.convert(manifest.options, recipe).build(below)
    except msgspec.ValidationError as error:
        raise ModelProblem(
            f"{model.folder}: `{manifest.algorithm}` cannot read its `options`: {error}"
        ) from None
    except ValueError as error:
        raise ModelProblem(f"{model.folder}: `{manifest.algorithm}` {error}") from None
    for task in manifest.tasks:
        if task not in available:
            raise ModelProblem(f"{model.folder}: `{manifest.algorithm}` cannot answer `{task}`")
    algorithms = {task: available[task] for task in manifest.tasks}
    embed = next((a for a in algorithms.values() if isinstance(a, LongEmbed)), None)
    return _serve(
        model,
        algorithms,
        below,
        algorithm=manifest.algorithm,
        labels=next((a.labels for a in algorithms.values() if isinstance(a, Labeller)), None),
        dimensions=embed.dimensions if embed is not None else None,
        prompts=embed.prompts if embed is not None else (),
    )


def _build_custom(
    model: Model,
    manifest: AlgorithmManifest,
    below: Sequence[ModelAlgorithms],
    hosts: AlgorithmHosts,
) -> Algorithms:
    """Return a model owner's algorithm, which runs in a process of `hosts`.

    Raises:
        ValueError: the algorithm cannot be built.
    """
    budget = msgspec.convert(manifest.options, Budget)
    if manifest.code is None:
        raise ValueError("needs `code`: a file beside the `model.yaml`, or `package.module:run`")
    key = (model.name, model.revision)
    host = hosts.open(key, code=manifest.code, folder=model.folder, budget=budget)
    known = {served_model.info.name: served_model.algorithms for served_model in below}
    return {Task.INFER: Custom(host=host, below=known, rows=budget.rows)}


def combined_version(algorithms: Mapping[Task, Algorithm]) -> int:
    """Return one number that grows when any of the algorithms gets a new version."""
    return _FOUNDATION_VERSION + sum(algorithm.version for algorithm in algorithms.values())
