"""Which weights pruning makes zero, and why it keeps others, stays as it was recorded."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from gossamer.errors import GossamerError
from gossamer.model.prune import check_sparsity, prune
from gossamer.model.prune_patterns import PATTERNS, smallest, two_of_four, whole_channels
from tests.recorded import Recorded, digest
from tests.recorded.varied import Options, varied


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns multiples of 1/8 of which many are equal; the largest is 2, so that norms of
    channels are computed without rounding."""
    array = np.random.default_rng((seed, *shape)).integers(-9, 10, shape) / 8
    array.reshape(-1)[:1] = 2.0
    return array.astype(np.float32)


def bits(mask: np.ndarray) -> str:
    return "".join(str(int(bit)) for bit in mask.reshape(-1))


def test_masks(recorded: Recorded) -> None:
    texts = {}
    for size in (1, 2, 5, 9):
        magnitudes = np.abs(drawn(size))
        texts[f"smallest of {size}"] = " ".join(
            bits(smallest(magnitudes, count)) for count in range(size + 1))
    equal = np.ones(4)
    texts["smallest of equal"] = " ".join(bits(smallest(equal, count)) for count in range(5))
    for shape, axis in (((4,), 0), ((3, 8), 1), ((8, 3), 0), ((2, 4, 3), 1), ((4, 4), -1)):
        texts[f"two of four {shape} {axis}"] = bits(two_of_four(np.abs(drawn(*shape)), axis))
        texts[f"two of four equal {shape} {axis}"] = bits(two_of_four(np.ones(shape), axis))
    for shape, axis in (((5, 3), 0), ((3, 5), 1), ((4, 2, 3), 0), ((1, 3), 0), ((6, 1), 0)):
        magnitudes = np.abs(drawn(*shape))
        for kind in ("drawn", "zeros", "infinite", "huge"):
            changed = magnitudes * {"zeros": 0, "huge": np.float32(1e38)}.get(kind, 1)
            if kind == "infinite":
                changed.reshape(-1)[-1] = np.inf
            with np.errstate(invalid="ignore"):
                texts[f"channels {shape} {axis} {kind}"] = " ".join(
                    bits(np.moveaxis(whole_channels(changed, axis, share), axis, 0).reshape(
                        shape[axis], -1)[:, 0]) for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.999))
    recorded("prune_masks", texts)


NETWORK: dict[str, Sequence[Any]] = {
    "weights": ("raw", "numbers", "double", "half", "half numbers", "brain numbers", "whole",
                "damaged"),
    "stored": ("initializer", "constant", "identity", "transposed", "cycle", "absent",
               "two values", "no input"),
    "also": ("none", "gather", "output", "second", "branch", "gather of identity", "bias reader"),
    "shape": ((8, 4, 3, 3), (8, 3, 1, 1), (0, 4, 1, 1), (8, 4), (8,)),
    "groups": (1, 8), "bias": ("own", "shared", "wrong", "none"),
    "values": ("drawn", "equal", "nan", "zeros"), "name": ("one", "", "three"),
    "behind": ("Relu", "Clip", "Flatten", "Pool", "Add", "none"),
    "last": ("Gemm", "Gemm B", "MatMul", "product", "MatMul 3"),
}


def network(o: Options) -> onnx.ModelProto:
    """Returns a network of two convolutions and a product, of which the first one is varied."""
    array = drawn(*o["shape"])
    if o["groups"] > 1 and array.ndim == 4:
        array = array[:, :1]
    array = {"equal": np.ones_like(array), "zeros": array * 0}.get(o["values"], array)
    if o["values"] == "nan" and array.size:
        array.reshape(-1)[1::3] = np.nan
    dtype = {"double": np.float64, "half": np.float16, "half numbers": np.float16,
             "whole": np.int8}.get(o["weights"], np.float32)
    with np.errstate(invalid="ignore"):
        tensor = numpy_helper.from_array(array.astype(dtype), "w1")
    if "numbers" in o["weights"]:
        kind = {"numbers": TensorProto.FLOAT, "half numbers": TensorProto.FLOAT16,
                "brain numbers": TensorProto.BFLOAT16}[o["weights"]]
        numbers = array.reshape(-1)
        tensor = TensorProto(name="w1", data_type=kind, dims=array.shape)
        if kind == TensorProto.FLOAT:
            tensor.float_data.extend(numbers.tolist())
        else:
            words = (numbers.view(np.uint32) >> 16 if kind == TensorProto.BFLOAT16 else
                     numbers.astype(np.float16).view(np.uint16))
            tensor.int32_data.extend(words.tolist())
    elif o["weights"] == "damaged":
        tensor.raw_data = tensor.raw_data[:-1]
    tensors = [numpy_helper.from_array(drawn(*shape, seed=3), name) for name, shape in (
        ("b1", (7,) if o["bias"] == "wrong" else array.shape[:1]), ("dw", (8, 1, 3, 3)),
        ("w2", (6, 8, 1, 1)), ("b2", (6,)), ("v", (6, 5)), ("vb", (5, 6)), ("v3", (2, 6, 5)))]
    nodes, read = [], "w1"
    if o["stored"] == "constant":
        nodes.append(helper.make_node("Constant", [], ["w1"], value=tensor))
    elif o["stored"] == "two values":  # no Constant has a second output
        nodes.append(helper.make_node("Constant", [], ["w0", "w1"], value=tensor))
    elif o["stored"] not in ("absent", "cycle", "no input"):
        tensors.append(tensor)
    if o["stored"] in ("identity", "transposed"):
        read = "w1.read"
        nodes.append(helper.make_node("Identity", ["w1"], [read]) if o["stored"] == "identity" else
                     helper.make_node("Transpose", ["w1"], [read]))
    elif o["stored"] == "cycle":
        nodes += [helper.make_node("Identity", ["w1"], ["other"]),
                  helper.make_node("Cast", ["other"], ["w1"], to=1)]
    elif o["stored"] == "no input":
        nodes.append(helper.make_node("Identity", [], ["w1"]))
    elif o["stored"] == "absent":
        nodes.append(helper.make_node("Exp", ["x"], ["w1"]))
    bias = {"own": ["b1"], "shared": ["b2"], "wrong": ["b1"], "none": []}[o["bias"]]
    nodes.append(helper.make_node("Conv", ["x", read, *bias], ["a"], o["name"],
                                  group=o["groups"]))
    value = "a"
    if o["behind"] != "none":
        op = {"Pool": "MaxPool"}.get(o["behind"], o["behind"])
        nodes.append(helper.make_node(op, ["a", "a"] if op == "Add" else ["a"], ["r"]))
        value = "r"
    nodes += [helper.make_node("Conv", [value, "dw"], ["d"], "two", group=8),
              helper.make_node("Conv", ["d", "w2", "b2"], ["e"], "three"),
              helper.make_node("GlobalAveragePool", ["e"], ["p"])]
    last = {"Gemm": ("Gemm", ["p", "v"], {}), "Gemm B": ("Gemm", ["p", "vb"], {"transB": 1}),
            "MatMul": ("MatMul", ["p", "v"], {}), "product": ("MatMul", ["p", "e"], {}),
            "MatMul 3": ("MatMul", ["p", "v3"], {})}[o["last"]]
    nodes.append(helper.make_node(last[0], last[1], ["s"], "four", **last[2]))
    nodes.append(helper.make_node("Softmax", ["s"], ["y"]))
    outputs = ["y"]
    if o["also"] == "gather":
        nodes.append(helper.make_node("Gather", ["w1", "x"], ["g"], "taken"))
    elif o["also"] == "gather of identity":
        nodes += [helper.make_node("Identity", ["w1"], ["i"]),
                  helper.make_node("Gather", ["i", "x"], ["g"])]
    elif o["also"] == "output":
        outputs.append("w1")
    elif o["also"] == "second":
        nodes.append(helper.make_node("Conv", ["x", "w1"], ["z"], "again"))
        outputs.append("r" if o["behind"] != "none" else "a")
    elif o["also"] == "branch":
        inner = helper.make_node("If", ["c"], ["k"], then_branch=helper.make_graph(
            [helper.make_node("Neg", ["w1"], ["k"])], "g", [], []))
        body = helper.make_graph([inner], "g", [], [])
        nodes.append(helper.make_node("If", ["c"], ["i"], "asks", then_branch=body))
    elif o["also"] == "bias reader":
        nodes.append(helper.make_node("Neg", ["b1"], ["i"]))
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info(
        name, TensorProto.FLOAT, None) for name in outputs], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def pruned(proto: onnx.ModelProto, *arguments: Any, **options: Any) -> str:
    """Returns the layers, and a digest of each tensor that was changed."""
    before = contents(proto)
    try:
        layers = prune(proto, *arguments, **options)
    except GossamerError as error:
        return f"{type(error).__name__}, {error}"
    rows = [f"{layer.op} {layer.name} {layer.weight} {'x'.join(map(str, layer.shape))} "
            f"{layer.before}-{layer.after}/{layer.size} {layer.kept}".strip() for layer in layers]
    changed = [f"{name} {digest(data)[:4]}" for name, data in contents(proto).items()
               if data != before[name]]
    return "; ".join([*rows, *changed])


def contents(proto: onnx.ModelProto) -> Mapping[str, bytes]:
    tensors = [*proto.graph.initializer, *(attribute.t for node in proto.graph.node
                                           for attribute in node.attribute if node.op_type
                                           == "Constant")]
    return {tensor.name: tensor.SerializeToString(deterministic=True) for tensor in tensors}


def test_networks(recorded: Recorded) -> None:
    texts = {}
    for case, options in varied(NETWORK, 40):
        for pattern in PATTERNS:
            texts[f"{case} {pattern}"] = pruned(network(options), 0.5, pattern=pattern)
    recorded("prune_networks", texts)


def test_options(recorded: Recorded) -> None:
    first = {name: values[0] for name, values in NETWORK.items()}
    texts = {}
    for sparsity, scope, pattern, depthwise in itertools.product(
            (None, -0.1, 0, 0.001, 0.1, 0.5, 0.9, 0.999, 1, 1.5, 30, 99.5, 100, 101),
            ("global", "layer"), (*PATTERNS, "rows"), (False, True)):
        if scope == "layer" and (pattern != "unstructured" or sparsity in (None, 1)):
            continue
        texts[f"{sparsity} {scope} {pattern} {depthwise}"] = pruned(
            network(first), sparsity, scope=scope, pattern=pattern, depthwise=depthwise)
    for pattern, sparsity, per_layer, keep in itertools.product(
            PATTERNS, (None, 0.25),
            ({"w1": 0.5}, {"one": 0.9, "two": 0.25}, {"one": 0.5, "w1": 0.5}, {"ones": 0.5},
             {"zzz": 0.5}, {"": 0.5}, {"one": 1}, {"three": 0.0}, {}),
            ((), ("one",), ("dw", "three"), ("none",))):
        texts[f"{pattern} {sparsity} {per_layer} {keep}".replace(": ", ":")] = pruned(
            network(first), sparsity, per_layer, pattern=pattern, keep=keep)
    for share in (-1, 0, 0.5, 0.999, 1, 1.0001, 1.5, 99, 99.9, 100, 101, float("nan")):
        texts[f"sparsity {share}"] = str(check_sparsity(share))
    recorded("prune_options", texts)


def test_names_that_are_near(recorded: Recorded) -> None:
    """A wrong name is answered with the names that contain it or are like it, or the first ones."""
    texts = {}
    for count, name in itertools.product((1, 2, 5, 6, 7), (
            "conv", "layer", "layer1", "layer_1", "LAYER", "q", "1", "x" * 90)):
        nodes = [helper.make_node("Conv", ["x", f"w{index}"], [f"y{index}"],
                                  "layer" if index == 3 else f"layer{index}" if index % 2 else "")
                 for index in range(count)]
        tensors = [numpy_helper.from_array(drawn(4, 4, 1, 1, seed=index), f"w{index}")
                   for index in range(count)]
        proto = helper.make_model(helper.make_graph(nodes, "g", [], [], tensors))
        texts[f"{count} {name}"] = pruned(proto, None, {name: 0.5})
        texts[f"{count} {name} keep"] = pruned(proto, 0.5, keep=[name])
    recorded("prune_names", texts)
