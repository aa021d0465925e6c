"""Adapters of tied weights are merged as `peft` computes them before it merges them."""

import json
from pathlib import Path

import numpy as np
import pytest

from sluicegate.backends.model_tools.importing.adapter import read_adapter
from testing.weight_files import write_safetensors

TABLE, HEAD = "model.embed_tokens", "lm_head"
BASE = {f"{TABLE}.weight": np.arange(12, dtype=np.float32).reshape(4, 3)}


@pytest.mark.parametrize(
    ("module", "part", "changed"),
    [(TABLE, "lora_embedding_", f"{TABLE}.weight"), (HEAD, "lora_", f"{HEAD}.weight")],
)
def test_only_the_adapted_one_of_two_tied_layers_changes(
    tmp_path: Path, module: str, part: str, changed: str
) -> None:
    shapes = ((2, 4), (3, 2)) if module == TABLE else ((2, 3), (4, 2))
    tensors = {
        f"base_model.model.{module}.{part}{each}": np.ones(shape, dtype=np.float32)
        for each, shape in zip("AB", shapes, strict=True)
    }
    write_safetensors(tmp_path / "adapter_model.safetensors", tensors)
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "lora_alpha": 2}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    adapter = read_adapter(tmp_path)
    assert adapter is not None

    merged = adapter.merge(BASE, "model.")
    completed = adapter.complete(
        {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True}
    )

    original = BASE[f"{TABLE}.weight"]
    (kept,) = {f"{TABLE}.weight", f"{HEAD}.weight"} - {changed}
    assert np.array_equal(merged[changed], original + 2)
    assert np.array_equal(merged[kept], original)
    assert completed["tie_word_embeddings"] is False
