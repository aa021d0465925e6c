"""Lists the algorithms that a `model.yaml` can name, each with what builds it."""

from collections.abc import Mapping
from types import MappingProxyType

from sluicegate.backends.algorithms.base import Recipe
from sluicegate.backends.algorithms.cascade import CascadeRecipe
from sluicegate.backends.algorithms.ensemble import EnsembleRecipe
from sluicegate.backends.algorithms.guard import GuardRecipe
from sluicegate.backends.algorithms.label_tree import LabelTreeRecipe
from sluicegate.backends.algorithms.long_document import LongDocumentRecipe
from sluicegate.backends.algorithms.pairs import (
    CrossEncoderRecipe,
    EntailmentRecipe,
    MultipleChoiceRecipe,
)
from sluicegate.backends.algorithms.reviewer import ReviewerRecipe
from sluicegate.backends.algorithms.tournament import TournamentRecipe
from sluicegate.backends.algorithms.zero_shot import ZeroShotRecipe

RECIPES: Mapping[str, type[Recipe]] = MappingProxyType(
    {
        "zero-shot-embedding": ZeroShotRecipe,
        "zero-shot-entailment": EntailmentRecipe,
        "multiple-choice": MultipleChoiceRecipe,
        "cross-encoder": CrossEncoderRecipe,
        "long-document": LongDocumentRecipe,
        "cascade": CascadeRecipe,
        "ensemble": EnsembleRecipe,
        "label-tree": LabelTreeRecipe,
        "tournament": TournamentRecipe,
        "reviewer": ReviewerRecipe,
        "guard": GuardRecipe,
    }
)
CUSTOM = "custom"
"""The name of a model owner's algorithm, which also needs code and a process to run it."""
