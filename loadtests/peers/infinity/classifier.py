"""Computes `sentiment` as a model of transformers: mean over tokens, normalization, linear head.

This file is copied beside the checkpoint. `config.json` names the file, so transformers finds it.
"""

from typing import Any

from torch import Tensor, nn
from transformers import BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanForSequenceClassification(BertPreTrainedModel):
    """A BERT encoder without its pooler, and a linear head."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, **_: Any
    ) -> SequenceClassifierOutput:
        """Return the logits of each row."""
        tokens = self.bert(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        pooled = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1)
        return SequenceClassifierOutput(logits=self.classifier(nn.functional.normalize(pooled)))
