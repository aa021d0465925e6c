"""Appends the modules of a sentence transformer to the graph of its encoder.

The modules compute the output `pooled` from the encoder's output. The appended nodes use only
operators of opset 11, so that they can complete graphs of older exporters. The formulas are those
of `sentence_transformers` 6 (Apache-2.0): `Pooling`, `Dense`, `LayerNorm` and `Normalize`. Rows are
padded on the right.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from onnx import ModelProto, TensorProto, helper

from sluicegate.backends.errors import ModelProblem
from sluicegate.backends.model_tools.graphs.graph_builder import GraphBuilder
from sluicegate.backends.model_tools.graphs.weights import Weights
from sluicegate.backends.repository.sentence_modules import (
    DenseModule,
    LayerNormModule,
    PoolingMode,
    SentenceModules,
)

POOLED = "pooled"
# An existing output `pooled` gets this name.
_BEFORE = "sentence.pooled"
_MASK = "attention_mask"
# From this opset on, an operator takes its axes as an input.
_AXES_AS_INPUT = MappingProxyType(
    {"ReduceSum": 13, "Unsqueeze": 13, "ReduceMax": 18, "ReduceMean": 18}
)
_OLDEST_OPSET = 11
_EPSILON = 1e-5
_LINEAR = {"linear.weight", "linear.bias"}
_ACTIVATIONS: Mapping[str, Callable[["SentenceWriter", str], str]] = MappingProxyType(
    {
        "Identity": lambda _, state: state,
        "Tanh": lambda writer, state: writer.add("Tanh", state),
        "ReLU": lambda writer, state: writer.add("Relu", state),
        "Sigmoid": lambda writer, state: writer.add("Sigmoid", state),
        "SiLU": lambda writer, state: writer.add("Mul", state, writer.add("Sigmoid", state)),
        "GELU": lambda writer, state: writer.gelu(state),
    }
)


def complete_graph(
    model: ModelProto,
    modules: SentenceModules,
    read_weights: Callable[[str], Weights],
    *,
    tokens: str,
    is_pooled: bool,
    skipped: int = 0,
) -> None:
    """Append all `modules` to `model`; the output `pooled` is their result.

    `tokens` is the name of the output that holds the states of the tokens. Pooling reads it, and
    leaves out the first `skipped` tokens of each row.

    If `is_pooled`, `model` already has an output `pooled`. Then no pooling is appended, and the
    modules after pooling read that output.

    Raises:
        ModelProblem: a module's weights do not fit, or its activation is not supported.
    """
    writer = SentenceWriter(find_opset(model))
    _rename_value(model, POOLED, _BEFORE)
    if is_pooled:
        state, width = _BEFORE, width_of(model, _BEFORE)
    else:
        width = width_of(model, tokens)
        state = writer.pool(tokens, modules.pooling, skipped)
        width = width and width * len(modules.pooling)
    for module in modules.after:
        if isinstance(module, DenseModule):
            state = writer.dense(state, module, read_weights(module.folder), width)
            width = module.outputs
        elif isinstance(module, LayerNormModule):
            state = writer.layer_norm(state, module, read_weights(module.folder))
        else:
            state = writer.normalize(state)
    writer.graph.plain("Identity", [state], POOLED)
    _extend(model, writer.graph, width)


def find_opset(model: ModelProto) -> int:
    """Return the opset of a graph.

    Raises:
        ModelProblem: the graph is too old for modules, or has no attention mask.
    """
    opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
    if opset < _OLDEST_OPSET or _MASK not in {value.name for value in model.graph.input}:
        raise ModelProblem(
            f"the graph has opset {opset} or lacks the input `{_MASK}`, so no module can be added; "
            "export it again with a recent version of optimum"
        )
    return int(opset)


def _extend(model: ModelProto, graph: GraphBuilder, width: int | None) -> None:
    """Append the new nodes to a model.

    Their output comes before other outputs of the same width.
    """
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.initializers)
    # All outputs of a served graph must have the same width.
    kept = [
        value
        for value in model.graph.output
        if value.name != _BEFORE and width in (None, width_of(model, value.name))
    ]
    del model.graph.output[:]
    size: list[int | str] = ["batch", width or "width"]
    made = helper.make_tensor_value_info(POOLED, TensorProto.FLOAT, size)
    model.graph.output.extend([made, *kept])
    prune(model)


def prune(model: ModelProto) -> None:
    """Remove the nodes that no output needs."""
    needed = {value.name for value in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed.update(node.input)
            # A branch of a node can read values from outside the branch.
            graphs = [a.g for a in node.attribute if a.HasField("g")]
            needed.update(name for graph in graphs for inner in graph.node for name in inner.input)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))


def width_of(model: ModelProto, output: str) -> int | None:
    """Return the size of the last axis of an output, if the graph names it."""
    found = next(value for value in model.graph.output if value.name == output)
    sizes = found.type.tensor_type.shape.dim
    return (sizes[-1].dim_value if sizes else 0) or None


def _rename_value(model: ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        node.name = new if node.name == old else node.name
        for names in (node.input, node.output):
            for place, name in enumerate(names):
                if name == old:
                    names[place] = new
    for value in model.graph.output:
        if value.name == old:
            value.name = new


class SentenceWriter:
    """Writes nodes after an encoder; the names of their values begin with `prefix`."""

    def __init__(self, opset: int, prefix: str = "sentence") -> None:
        self.graph = GraphBuilder({}, "fp32")
        self._opset = opset
        self._prefix = prefix
        self._values = 0

    def add(self, operator: str, *inputs: str, **attributes: int) -> str:
        """Append a node, and return the name of its value."""
        self._values += 1
        return self.graph.plain(
            operator, list(inputs), f"{self._prefix}.value.{self._values}", **attributes
        )

    def number(self, value: float) -> str:
        """Append a float."""
        return self.array(np.array(value, dtype=np.float32))

    def array(self, value: "np.ndarray[tuple[int, ...], np.dtype[np.float32 | np.int64]]") -> str:
        """Append an array."""
        self._values += 1
        return self.graph.constant(f"{self._prefix}.constant.{self._values}", value)

    def over(self, operator: str, state: str, axis: int, **attributes: int) -> str:
        """Append an operator that works along one axis."""
        if self._opset >= _AXES_AS_INPUT[operator]:
            return self.add(operator, state, self.array(np.array([axis])), **attributes)
        name = self.add(operator, state, **attributes)
        self.graph.nodes[-1].attribute.append(helper.make_attribute("axes", [axis]))
        return name

    def pool(self, tokens: str, modes: tuple[PoolingMode, ...], skipped: int) -> str:
        """Append the pooling of each row's tokens, without the first `skipped` tokens."""
        mask = self.add("Cast", _MASK, to=TensorProto.FLOAT)
        # Tokens are counted from 1. Places of padding have the number of the last token.
        places = self.add("CumSum", mask, self.array(np.array(1)))
        if skipped:
            later = self.add("Greater", places, self.number(skipped))
            mask = self.add("Mul", mask, self.add("Cast", later, to=TensorProto.FLOAT))
        is_real = self.over("Unsqueeze", self.add("Cast", mask, to=TensorProto.BOOL), -1)
        # The output of a graph may be NaN at padding.
        real = self.add("Where", is_real, tokens, self.number(0.0))
        count = self.over("ReduceSum", mask, 1, keepdims=1)
        vectors = []
        for mode in modes:
            if mode == "cls":
                first = self.add("Equal", places, self.number(skipped + 1))
                vectors.append(self._weighted_sum(real, self._chosen(first, mask)))
            elif mode == "max":
                least = self.number(float(np.finfo(np.float32).min))
                masked = self.add("Where", is_real, tokens, least)
                vectors.append(self.over("ReduceMax", masked, 1, keepdims=0))
            elif mode == "lasttoken":
                end = self.over("ReduceMax", places, 1, keepdims=1)
                last = self.add("Equal", places, end)
                vectors.append(self._weighted_sum(real, self._chosen(last, mask)))
            elif mode == "weightedmean":
                weights = self.add("Mul", mask, places)
                total = self.over("ReduceSum", weights, 1, keepdims=1)
                vectors.append(self._divided(self._weighted_sum(real, weights), total))
            else:
                by = self.add("Sqrt", count) if mode == "mean_sqrt_len_tokens" else count
                vectors.append(self._divided(self.over("ReduceSum", real, 1, keepdims=0), by))
        return vectors[0] if len(vectors) == 1 else self.add("Concat", *vectors, axis=-1)

    def dense(self, state: str, module: DenseModule, weights: Weights, width: int | None) -> str:
        """Append the linear layer of a `Dense`, and its activation."""
        matrix, bias = weights.get("linear.weight"), weights.get("linear.bias")
        shape = (module.outputs, module.inputs)
        fits = width in (None, module.inputs) and (bias is not None) is module.bias
        if not fits or matrix is None or matrix.shape != shape or set(weights) - _LINEAR:
            raise ModelProblem(
                f"`{module.folder}`: the weights do not fit a `Dense` with {width or 'any'} inputs "
                f"and {module.outputs} outputs"
            )
        path, _, name = module.activation.rpartition(".")
        if not path.startswith("torch.") or name not in _ACTIVATIONS:
            raise ModelProblem(
                f"`{module.folder}/config.json`: the activation `{module.activation}` is not "
                f"supported; use one of torch's {', '.join(_ACTIVATIONS)}"
            )
        product = self.add("MatMul", state, self.array(np.ascontiguousarray(matrix.T)))
        if bias is not None:
            product = self.add("Add", product, self.array(np.asarray(bias)))
        return _ACTIVATIONS[name](self, product)

    def layer_norm(self, state: str, module: LayerNormModule, weights: Weights) -> str:
        """Append the layer normalization of a `LayerNorm`."""
        parts = [weights.get("norm.weight"), weights.get("norm.bias")]
        if any(part is None or part.shape != (module.width,) for part in parts):
            raise ModelProblem(
                f"`{module.folder}`: the weights do not fit a `LayerNorm` of {module.width} values"
            )
        return self.normed(state, weights, "norm", _EPSILON)

    def normed(self, state: str, weights: Weights, name: str, epsilon: float) -> str:
        """Append a layer normalization, which may have no bias."""
        if f"{name}.weight" not in weights:
            raise ModelProblem(f"the weight `{name}.weight` is missing")
        centred = self.add("Sub", state, self.over("ReduceMean", state, -1, keepdims=1))
        squares = self.add("Mul", centred, centred)
        variance = self.over("ReduceMean", squares, -1, keepdims=1)
        spread = self.add("Sqrt", self.add("Add", variance, self.number(epsilon)))
        scale = self.array(np.asarray(weights[f"{name}.weight"]))
        scaled = self.add("Mul", self.add("Div", centred, spread), scale)
        if (shift := weights.get(f"{name}.bias")) is None:
            return scaled
        return self.add("Add", scaled, self.array(np.asarray(shift)))

    def linear(self, state: str, weights: Weights, name: str) -> str:
        """Append a linear layer, which may have no bias."""
        if f"{name}.weight" not in weights:
            raise ModelProblem(f"the weight `{name}.weight` is missing")
        matrix = np.ascontiguousarray(weights[f"{name}.weight"].T)
        product = self.add("MatMul", state, self.array(matrix))
        if (bias := weights.get(f"{name}.bias")) is None:
            return product
        return self.add("Add", product, self.array(np.asarray(bias)))

    def real(self) -> str:
        """Append a mask of the real tokens, `[batch, sequence, 1]`."""
        return self.over("Unsqueeze", self.add("Cast", _MASK, to=TensorProto.BOOL), -1)

    def unpadded(self, tokens: str) -> str:
        """Append token vectors with the row's first vector in each place of padding."""
        first = self.add("Gather", tokens, self.array(np.array([0])), axis=1)
        return self.add("Where", self.real(), tokens, first)

    def tanh_gelu(self, state: str) -> str:
        """Append the tanh approximation of GELU."""
        cube = self.add("Mul", self.add("Mul", state, state), state)
        inner = self.add("Add", state, self.add("Mul", cube, self.number(0.044715)))
        bent = self.add("Tanh", self.add("Mul", inner, self.number((2.0 / np.pi) ** 0.5)))
        half = self.add("Mul", state, self.number(0.5))
        return self.add("Mul", half, self.add("Add", bent, self.number(1.0)))

    def normalize(self, state: str) -> str:
        """Append nodes that scale vectors to length one; a zero vector stays zero."""
        squares = self.over("ReduceSum", self.add("Mul", state, state), -1, keepdims=1)
        length = self.add("Max", self.add("Sqrt", squares), self.number(1e-12))
        return self.add("Div", state, length)

    def gelu(self, state: str) -> str:
        """Append a GELU."""
        error = self.add("Erf", self.add("Mul", state, self.number(2.0**-0.5)))
        half = self.add("Mul", state, self.number(0.5))
        return self.add("Mul", half, self.add("Add", error, self.number(1.0)))

    def _chosen(self, places: str, mask: str) -> str:
        """Append a mask of the real tokens among the given places."""
        return self.add("Mul", mask, self.add("Cast", places, to=TensorProto.FLOAT))

    def _weighted_sum(self, tokens: str, weights: str) -> str:
        weighted = self.add("Mul", tokens, self.over("Unsqueeze", weights, -1))
        return self.over("ReduceSum", weighted, 1, keepdims=0)

    def _divided(self, total: str, count: str) -> str:
        return self.add("Div", total, self.add("Max", count, self.number(1e-9)))
