"""Gives checkpoints that `transformers` wrote the configurations of published checkpoints.

Some families were published before `transformers` had them, with code of their own. Their weights
have the same names, but their `config.json` has other fields:

- GTE: `configuration.py` of `Alibaba-NLP/new-impl`.
- Nomic BERT: `configuration_hf_nomic_bert.py` of `nomic-ai/nomic-bert-2048`.
- jina-embeddings-v3: `configuration_xlm_roberta.py` of `jinaai/xlm-roberta-flash-implementation`,
  and the adapters of `modeling_lora.py` there.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.models.gte.modeling_gte import GteRotaryEmbedding

_NOMIC_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
}


_TASKS, _TASK, _RANK, _ALPHA = ["retrieval.query", "separation", "text-matching"], 1, 2, 1


def publish(folder: Path, scaling: Mapping[str, Any] | None) -> None:
    """Rewrite the `config.json` of a folder; `scaling` is what `ntk_scaling` computed."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    if config["model_type"] == "gte":
        _rename_weights(folder / "model.safetensors", {"gte.": "new."})
    config = _PUBLISHERS[config["model_type"]](config, rope["rope_theta"], scaling)
    path.write_text(json.dumps(config))


def _rename_weights(path: Path, prefixes: Mapping[str, str]) -> None:
    weights = load_file(path)
    for old, new in prefixes.items():
        weights = {
            new + name.removeprefix(old) if name.startswith(old) else name: tensor
            for name, tensor in weights.items()
        }
    save_file(weights, path, {"format": "pt"})


def _gte(config: dict[str, Any], theta: float, scaling: Mapping[str, Any] | None) -> dict[str, Any]:
    names = [name.replace("Gte", "New") for name in config["architectures"]]
    return {
        **config,
        "model_type": "new",
        "architectures": names,
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": scaling and dict(scaling),
        "rope_theta": theta,
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    }


def _nomic(config: dict[str, Any], theta: float, _: object) -> dict[str, Any]:
    renamed = {_NOMIC_NAMES.get(name, name): value for name, value in config.items()}
    del renamed["hidden_act"]
    return renamed | {
        "activation_function": "swiglu",
        "auto_map": {
            "AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"
        },
        "causal": False,
        "parallel_block": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": theta,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "use_rms_norm": False,
    }


def _jina(config: dict[str, Any], theta: float, _: object) -> dict[str, Any]:
    names = [name.replace("JinaEmbeddingsV3", "XLMRoberta") for name in config["architectures"]]
    code = "jinaai/xlm-roberta-flash-implementation--modeling_xlm_roberta.XLMRobertaModel"
    return {
        **config,
        "model_type": "xlm-roberta",
        "architectures": names,
        "auto_map": {"AutoModel": code},
        "position_embedding_type": "rotary",
        "rotary_emb_base": theta,
        "use_flash_attn": False,
    }


_PUBLISHERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "gte": _gte,
    "nomic_bert": _nomic,
    "jina_embeddings_v3": _jina,
}


class Adapted:
    """Adds adapters to the weights of a folder, and merges one for `transformers` to read."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        path = folder / "model.safetensors"
        generator = torch.Generator().manual_seed(seed)
        weights = load_file(path)
        self._published: dict[str, torch.Tensor] = {}
        for name, weight in list(weights.items()):
            layer, _, part = name.rpartition(".")
            if part != "weight" or weight.ndim == 1 or layer.startswith("classifier"):
                self._published[name] = weight
                continue
            rows, columns = weight.shape
            is_table = layer.endswith("_embeddings")
            # As `LoRAParametrization` has them: `lora_B @ lora_A`, or the reverse for embeddings.
            pair = ["lora_A", "lora_B"] if is_table else ["lora_B", "lora_A"]
            sizes = [(len(_TASKS), rows, _RANK), (len(_TASKS), _RANK, columns)]
            parts = [torch.round(torch.randn(s, generator=generator) * 16) / 64 for s in sizes]
            weights[name] = weight + parts[0][_TASK] @ parts[1][_TASK] * (_ALPHA / _RANK)
            at = f"{layer}.parametrizations.weight"
            self._published[f"{at}.original"] = weight
            self._published |= {f"{at}.0.{n}": t for n, t in zip(pair, parts, strict=True)}
        save_file(weights, path, {"format": "pt"})

    def publish(self) -> None:
        """Write the weights with all adapters, and what an import needs to merge the same one."""
        save_file(self._published, self._folder / "model.safetensors", {"format": "pt"})
        (self._folder / "model.yaml").write_text(f"adapter: {_TASKS[_TASK]}\n")
        path = self._folder / "config.json"
        own = {"lora_adaptations": _TASKS, "lora_alpha": _ALPHA, "lora_rank": _RANK}
        path.write_text(json.dumps(json.loads(path.read_text()) | own))
        modules = self._folder / "modules.json"
        if modules.exists():
            listed = json.loads(modules.read_text())
            listed[0]["type"] = "custom_st.Transformer"
            modules.write_text(json.dumps(listed))


@contextmanager
def ntk_scaling(scaling: Mapping[str, Any] | None) -> Iterator[None]:
    """Make `GteModel` scale its positions as `NTKScalingRotaryEmbedding` of `new-impl` does."""

    def scaled(config: Any, **_: Any) -> tuple[torch.Tensor, float]:
        assert scaling is not None
        dim, factor = config.hidden_size // config.num_attention_heads, scaling["factor"]
        mixed = scaling.get("mixed_b")
        base = config.rope_parameters["rope_theta"] * (factor if mixed is None else 1)
        inverse = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        if mixed is None:
            return inverse / factor ** (2 / dim), 1.0
        share = torch.tensor(factor).log() / (dim / 2) ** mixed
        return inverse / (share * torch.arange(1, dim // 2 + 1).float() ** mixed).exp(), 1.0

    own = GteRotaryEmbedding.compute_default_rope_parameters
    if scaling is not None:
        GteRotaryEmbedding.compute_default_rope_parameters = staticmethod(scaled)
    try:
        yield
    finally:
        GteRotaryEmbedding.compute_default_rope_parameters = staticmethod(own)
