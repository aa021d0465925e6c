"""Defines the options of an encoder's graph: precision, kind of attention, output."""

from typing import Literal

import msgspec

Precision = Literal["fp32", "fp16", "bf16"]
Output = Literal["tokens", "first"]
Attention = Literal["fused", "heads", "ranges", "gathered", "plain", "packed"]


class GraphOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the precision, the kind of attention and the output of a graph.

    `attention` says which operator computes attention:

    - `fused` uses `Attention`, which also projects query, key and value. The operator gets
      the lengths of the rows. This kind suits CPUs.
    - `heads` uses `MultiHeadAttention`, which gets the lengths of the rows. This kind suits
      cuDNN's kernels.
    - `ranges` is like `heads`, but the operator also gets the index of each row's first
      token. This kind suits the memory-efficient kernels.
    - `gathered` uses `MultiHeadAttention`. All other nodes compute real tokens only. This
      kind suits CPUs, and must be in fp32.
    - `plain` uses only ONNX's own operators, which TensorRT and OpenVINO fuse. It must be in
      fp32, because these runtimes convert the graph to their precision themselves.
    - `packed` uses `PackedMultiHeadAttention`, which gets query, key and value without
      padding, as three tensors. This kind suits the flash kernels. It needs CUDA, and cannot
      become a CUDA graph.

    `bf16` needs `heads` or `ranges`, because the kernels of all other kinds do not support bf16.
    The output is float32 in every precision: the last state of every token (`tokens`), or of each
    row's first token (`first`). With `first`, the last layer of a `gathered` or `plain` graph
    computes first tokens only.
    """

    precision: Precision = "fp32"
    attention: Attention = "fused"
    output: Output = "tokens"

    @property
    def packed(self) -> bool:
        """Whether the layers leave padding out."""
        return self.attention == "packed"

    def problem(self) -> str | None:
        """Return why the options are not valid; `None` if they are."""
        if self.attention == "gathered" and self.precision != "fp32":
            return "`gathered` attention is only for fp32"
        if self.attention == "plain" and self.precision != "fp32":
            return "a `plain` graph must be in fp32, because its runtime rounds it"
        if self.precision == "bf16" and self.attention not in {"heads", "ranges"}:
            return f"no kernel computes `{self.attention}` attention in bf16"
        return None
