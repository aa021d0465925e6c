"""Enumerates the forms in which an encoder can be written; measurements choose the fastest."""

from collections.abc import Collection
from typing import Literal

import msgspec

from backends.model_tools.graphs.weights import WeightsError

Precision = Literal["fp32", "fp16", "bf16"]
Output = Literal["pooled", "tokens", "first"]
Attention = Literal[
    "fused", "heads", "ranges", "gathered", "plain", "packed", "packed-qkv", "packed-fused"
]


class GraphForm(msgspec.Struct, frozen=True, kw_only=True):
    """Selects numbers, attention and outputs of a graph. The default and `gathered` suit CPUs.

    `attention` is one of

    - `fused`: `Attention` with the lengths of the rows; projects and attends in one node;
    - `heads`: `MultiHeadAttention` with the lengths, as the kernels of cuDNN take them;
    - `ranges`: the same with where each row begins, as the memory-efficient kernels take them;
    - `gathered`: real tokens only, laid out in rows for `MultiHeadAttention` alone; fp32, for CPUs;
    - `plain`: operators of ONNX alone, as TensorRT and OpenVINO fuse them; fp32, which they round;
    - `packed`: without padding, `PackedMultiHeadAttention` on query, key and value apart, as the
      flash kernels take them; CUDA only, and not together with CUDA graphs;
    - `packed-qkv`: the same on one interleaved product;
    - `packed-fused`: without padding, `PackedAttention`.

    `bf16` needs `heads` or `ranges`: no other kernel takes it. Outputs are float32 whatever the
    precision, and `outputs` leaves out those that nobody asks for. `first`, what the first token of
    every row becomes, goes with no other: a `gathered` graph then computes nothing else in its last
    layer.
    """

    precision: Precision = "fp32"
    attention: Attention = "fused"
    outputs: tuple[Output, ...] = ("pooled", "tokens")

    @property
    def packed(self) -> bool:
        """Whether the encoder's layers see no padding."""
        return self.attention.startswith("packed")

    def problem(self) -> str | None:
        """Return why this cannot be built, if it cannot."""
        if not self.outputs:
            return "a graph needs an output"
        if "first" in self.outputs and len(self.outputs) > 1:
            return "the output `first` goes with no other"
        if self.attention == "gathered" and self.precision != "fp32":
            return "`gathered` attention is for CPUs, in fp32"
        if self.attention == "plain" and self.precision != "fp32":
            return "`plain` graphs are in fp32: the runtime rounds"
        if self.precision == "bf16" and self.attention not in {"heads", "ranges"}:
            return f"no kernel computes `{self.attention}` attention in bf16"
        return None


def check_form(form: GraphForm, *, attention: Collection[Attention]) -> None:
    """Refuse the forms that a family lacks: other kinds of `attention`, and bf16.

    Raises:
        WeightsError: the form is one of them, or no family has it.
    """
    problem = form.problem()
    if form.attention not in attention or form.precision == "bf16":
        problem = f"no kernel computes `{form.attention}` attention of this family so"
    if problem is not None:
        raise WeightsError(problem)
