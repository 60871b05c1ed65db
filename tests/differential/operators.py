"""How the attributes and the further inputs of operators are drawn, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.differential.network import Draft, Unfit


def _reshaped(d: Draft, x: np.ndarray) -> np.ndarray:
    sizes, i = list(x.shape), int(d.rng.integers(0, x.ndim + 1))
    sizes = d.pick([*sizes[:i], 1, *sizes[i:]], sizes,
                   [*sizes[:i], int(np.prod(sizes[i:i + 2])), *sizes[i + 2:]])
    sizes[i:i + 1] = d.pick(sizes[i:i + 1], [-1][:len(sizes) - i])
    return np.array(sizes, np.int64)


def _weights(d: Draft, x: np.ndarray, dtype: Any = None, transposed: bool = False) -> str:
    out, group = d.once("out", 1, 2, 4), d.once("group", 1, 1, x.shape[1])
    sizes = (x.shape[1], out) if transposed else (out * group, x.shape[1] // group)
    return d.other((*sizes, *d.once("kernel", *_kernels(d, x))), dtype or x.dtype)


def _kernels(d: Draft, x: np.ndarray) -> list[list[int]]:
    return [[d.pick(1, 2, 3, 3) for _ in x.shape[2:]] for _ in range(2)]


def _matrix(d: Draft, x: np.ndarray, dtype: Any = None) -> str:
    k, n = x.shape[-1], d.size()
    return d.other(d.pick((k,), (k, n), (k, n), (*x.shape[:-2], k, n), (1, *x.shape[:-2], k, n)),
                   dtype or x.dtype)


def _equation(d: Draft, x: np.ndarray) -> tuple[str, list[str]]:
    letters, sizes = "abcde"[:x.ndim], {**dict(zip("abcde", x.shape, strict=False)), "z": d.size()}
    result, second = ("".join(d.rng.permutation(list(letters))[:d.pick(*most)])
                      for most in ((0, 1, 2, 3), (1, 2)))
    if d.chance(0.3):
        return d.pick(f"{letters}->{result}", f"...{letters[-1:]}->..."), []
    second += d.pick("", "z")
    return f"{letters},{second}->{result}{second[2:]}", [
        d.other(tuple(sizes[letter] for letter in second), x.dtype)]


def _parts(d: Draft, x: np.ndarray) -> list[str]:
    axis = d.axis(x) % x.ndim
    return [d.other((*x.shape[:axis], d.size(), *x.shape[axis + 1:]), x.dtype) for _ in range(2)]


def _indices(d: Draft, x: np.ndarray, *shapes: tuple[int, ...]) -> np.ndarray:
    size = x.shape[d.axis(x)]
    return d.rng.integers(-size if d.opset >= 11 else 0, size, d.pick(*shapes))


def _elements(d: Draft, x: np.ndarray) -> np.ndarray:
    """Returns the indices of a ScatterElements: a permutation of an axis."""
    axis = d.axis(x) % x.ndim
    return np.arange(x.shape[axis])[::d.once("way", 1, -1)].reshape(
        [-1 if i == axis else 1 for i in range(x.ndim)])


def _gates(d: Draft, x: np.ndarray, rows: int, part: str) -> str:
    hidden, sides = d.once("hidden", 1, 3), d.once("sides", 1, 2)
    return d.other((sides, 2 * rows * hidden) if part == "B" else (
        sides, rows * hidden, x.shape[-1] if part == "W" else hidden), x.dtype)


def _channels(d: Draft, x: np.ndarray) -> str:
    return d.other((x.shape[1],), x.dtype)


def _zero(d: Draft, x: np.ndarray) -> str:
    return d.constant(np.asarray(d.once("zero", 0, 3), x.dtype))


_SCALE = np.float32(0.05)
DRAWS: dict[str, Any] = {
    "axis": lambda d, x: d.axis(x), "axes": lambda d, x: d.axes(x),
    "Slice.axes": lambda d, x: d.once("axes", [d.axis(x)], d.rng.permutation(x.ndim)[:2].tolist()),
    "Unsqueeze.axes": lambda d, x: d.pick([0], [x.ndim], [-1], [0, x.ndim + 1]),
    "Squeeze.axes": lambda d, x: [i for i, size in enumerate(x.shape) if size == 1],
    "starts": lambda d, x: [d.pick(0, -2, 1, -99) for _ in DRAWS["Slice.axes"](d, x)],
    "ends": lambda d, x: [d.pick(1, 100, -1, 3, -9) for _ in DRAWS["Slice.axes"](d, x)],
    "steps": lambda d, x: [d.pick(1, 1, 2, -1, -2) for _ in DRAWS["Slice.axes"](d, x)],
    "approximate": ("tanh", "none"), "LRN.size": (1, 3), "blocksize": (1, 2), "num_groups": (1,),
    "auto_pad": lambda d, x: d.once("auto_pad", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER",
                                    "VALID"), "Conv.W": _weights,
    "ConvTranspose.W": lambda d, x: _weights(d, x, transposed=True), "W": _weights,
    "kernel_shape": lambda d, x: d.once("kernel", *_kernels(d, x)),
    # ONNX Runtime counts a window where none fits, and what follows differs in turn
    **dict.fromkeys([f"{kind}Pool.kernel_shape" for kind in ("Average", "Lp", "Max")],
                    lambda d, x: [d.pick(1, *range(1, min(size, 3) + 1)) for size in x.shape[2:]]),
    "strides": lambda d, x: [d.pick(1, 2, 3) for _ in x.shape[2:]],
    "dilations": lambda d, x: [d.pick(1, 1, 2) for _ in x.shape[2:]],
    "pads": lambda d, x: [d.pick(0, 0, 1, 2) for _ in x.shape[2:] * 2] if DRAWS["auto_pad"](
        d, x) == "NOTSET" else None,
    "output_padding": lambda d, x: [1 for _ in x.shape[2:]], "p": (1, 2),
    "group": lambda d, x: d.once("group", 1, 1, x.shape[1]), **dict.fromkeys(
        ("B", "bias", "scale", "mean", "input_mean"), _channels),
    **{f"{op}.B": lambda d, x: d.other((d.once("out", 1) * d.once("group", 1),), x.dtype)
       for op in ("Conv", "ConvTranspose")},
    **{name: lambda d, x: d.constant(d.rng.uniform(0.5, 2, x.shape[1]).astype(x.dtype))
       for name in ("var", "input_var")},
    "Scale": lambda d, x: d.other(x.shape[d.axis(x):], x.dtype), "Gemm.B": lambda d, x: d.other(
        (d.pick(*x.shape), d.once("n", 1, 3, 4))[::d.pick(1, -1)], x.dtype),
    "Gemm.C": lambda d, x: d.other((1, d.once("n", 1, 3, 4))[d.pick(0, 1, 2):], x.dtype),
    "equation": lambda d, x: d.once("einsum", _equation(d, x))[0], "Concat.inputs": _parts,
    "Einsum.Inputs": lambda d, x: d.once("einsum", _equation(d, x))[1], "MatMul.B": _matrix,
    "min": (-1, 0, 1, 3), "max": (6, 2, 4), "to": (1, 1, 10, 11, 3, 2, 6, 7, 9), "shape": _reshaped,
    "Expand.shape": lambda d, x: [*d.pick([], [2]), *(
        d.pick(1, size if size > 1 else 3) for size in x.shape)], "num_outputs": (2,),
    "perm": lambda d, x: d.rng.permutation(x.ndim).tolist(), "Trilu.k": (-1, 0, 1),
    "repeats": lambda d, x: [d.pick(1, 1, 2, 3) for _ in x.shape], "K": ([1], [2]), "k": ([1], [2]),
    "split": lambda d, x: [1, x.shape[d.axis(x)] - 1], "constant_value": (1, 3),
    "Pad.pads": lambda d, x: [d.pick(0, 0, 1, 2, -1) for _ in x.shape * 2],
    "Pad.mode": ("constant", "reflect", "edge", "wrap"), "DepthToSpace.mode": ("DCR", "CRD"),
    "mode": ("nearest", "nearest", "linear", "cubic"), "roi": np.zeros(0, np.float32),
    "scales": lambda d, x: np.array([1.0 if x.ndim > 2 > i else d.pick(1, 2, 0.5, 1.5, 0.7, 3)
                                     for i in range(x.ndim)], np.float32),
    "sizes": lambda d, x: [s if x.ndim > 2 > i else d.size() for i, s in enumerate(x.shape)],
    "coordinate_transformation_mode": ("asymmetric", "half_pixel", "align_corners",
                                       "pytorch_half_pixel", "half_pixel_symmetric"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    **{f"Where.{name}": lambda d, x: d.other(d.fewer(x.shape), "float32") for name in "XY"},
    "Gather.indices": lambda d, x: _indices(d, x, (), (2,), (2, 2)),
    "GatherElements.indices": lambda d, x: _indices(d, x, x.shape, d.rng.integers(
        1, np.add(x.shape, 1)).tolist()), "GatherND.indices": ([[0]], [[0, 0], [-1, 0]]),
    "ScatterND.indices": ([[0], [-1]],), "ScatterND.updates": lambda d, x: d.other(
        (2, *x.shape[1:]), x.dtype), "reduction": ("none", "add", "mul"),
    "ScatterElements.indices": _elements, "ScatterElements.updates": lambda d, x: d.other(
        _elements(d, x).shape, x.dtype), "hidden_size": lambda d, x: d.once("hidden", 1, 3),
    "direction": lambda d, x: d.pick("forward", "reverse") if d.once(
        "sides", 1, 2) == 1 else "bidirectional", "depth": np.array(4), "limit": (5,),
    "delta": (1, 2), "values": np.array([0, 1], np.float32),
    "condition": lambda d, x: d.rng.random(x.size) < 0.7,
    **dict.fromkeys(("y_scale", "x_scale", "a_scale", "w_scale", "b_scale"), _SCALE),
    **dict.fromkeys(("x_zero_point", "a_zero_point"), _zero), "w_zero_point": np.int8(0),
    "y_zero_point": (np.int8(3), np.uint8(3), np.uint8(0)), "b_zero_point": np.int8(0),
    **dict.fromkeys(("MatMulInteger.B", "b"), lambda d, x: _matrix(d, x, "int8")),
    "w": lambda d, x: _weights(d, x, "int8"),
    **{f"{op}.{part}": (lambda d, x, gates=gates, part=part: _gates(d, x, gates, part))
       for op, gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)) for part in "WRB"}}
"""By the name of an attribute or an input, if need be behind an operator: the choices, or a
function of the first input. Other inputs are broadcast; other attributes are near their defaults.
"""
OUTPUTS = {"Split": 2, "TopK": 2, "LSTM": 3, "GRU": 2, "RNN": 2}


def quantised(d: Draft) -> None:
    """A convolution or a product between DequantizeLinear and QuantizeLinear."""
    x, kind = d.value("Relu"), d.pick("int8", "uint8")
    array, forms = d.values[x], [
        [d.constant(np.float32(scale)), d.constant(np.asarray(zero, kind))]
        for scale, zero in ((0.03, 3), (0.01, 0), (0.1, d.pick(0, 5)))]
    op, shape = {4: ("Conv", (3, 3)), 2: ("MatMul", ())}[array.ndim]
    sizes = (d.size(), array.shape[1])[::1 if shape else -1]
    w = d.node("DequantizeLinear", [d.constant(d.array((*sizes, *shape), kind)), *forms[1]])
    x = d.node("DequantizeLinear", [d.node("QuantizeLinear", [x, *forms[0]]), *forms[0]])
    y = d.node(op, [x, w])
    y = d.node("Relu", [y]) if d.chance(0.5) else y
    d.node("DequantizeLinear", [d.node("QuantizeLinear", [y, *forms[2]]), *forms[2]])


def bodies(d: Draft) -> None:
    """An If, a Loop, or an operator of bfloat16 between casts."""
    x, info = d.value("Relu"), helper.make_tensor_value_info
    if d.values[x].dtype != np.float32:
        raise Unfit
    kind = d.pick("If", "Loop", "Cast")
    if kind == "If":
        then, other = (helper.make_graph([helper.make_node(op, [x], ["t"])], "b", [], [
            info("t", 1, None)]) for op in (d.pick("Relu", "Neg"), d.pick("Exp", "Identity")))
        d.node("If", [d.other((), "bool")], then_branch=then, else_branch=other)
    elif kind == "Loop":
        ends = (("Identity", ["go"], ["on"]), ("Add", ["s", x], ["t"]), ("Relu", ["t"], ["u"]))
        inner, outer = ([info(*entry) for entry in entries] for entries in (
            (("i", 7, []), ("go", 9, []), ("s", 1, None)),
            (("on", 9, []), ("t", 1, None), ("u", 1, None))))
        body = helper.make_graph([helper.make_node(*end) for end in ends], "b", inner, outer)
        d.node("Loop", [d.constant(d.pick(1, 3)), d.constant(True), x], 2, body=body)
    else:
        short = d.node("Cast", [x], to=TensorProto.BFLOAT16)
        d.node("Cast", [d.node(d.pick("Identity", "Abs", "Neg"), [short])], to=TensorProto.FLOAT)


COMPOSED = (quantised, bodies)
OFTEN = (
    "Conv Conv Conv MaxPool MaxPool AveragePool AveragePool ConvTranspose Resize Resize Resize GRU "
    "MatMul Gemm Gemm Gemm Einsum Transpose Reshape Slice Pad Gather Unsqueeze Squeeze Cast Resize "
    "ScatterElements TopK ReduceMean ReduceSum ReduceMax Concat Add Mul Clip Where QuantizeLinear "
    "DequantizeLinear Softmax BatchNormalization DepthToSpace Cast")
LEFT_OUT = ("Bernoulli|Constant|Random.*|Multinomial|.*Sequence.*|Optional.*|If|Loop|Scan|String.*|"
            "Regex.*|.*Vectorizer|.*Loss|ImageDecoder|S?T?DFT|.*Window|.*Matrix")
"""Operators that are random, that are composed, or of values that are no tensors of numbers."""
