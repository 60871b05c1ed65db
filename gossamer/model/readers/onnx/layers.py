"""Converters of ONNX's layers, from convolutions and pools to reductions and normalisations.

A layer norm or RMS norm with a constant scale and bias becomes one node. Other layer norms and RMS
norms, and instance and group norms, become reductions and element-wise nodes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gossamer.errors import quoted
from gossamer.expression import Composer, Value, apply, identity
from gossamer.model.readers.onnx.node import Converter, OnnxNode
from gossamer.model.readers.onnx.value_types import OTHER_SIZES, Probe


def _is_1d(node: OnnxNode, rank: int) -> bool:
    """Return whether a convolution or pool is 1-D, and has to become a 2-D op.

    rank: number of spatial dimensions. Raises UnsupportedError unless `rank` is 1 or 2.
    """
    if rank not in (1, 2):
        raise node.unsupported(f"has {rank} spatial dimensions; gossamer computes 1 or 2")
    return rank == 1


def _window(node: OnnxNode, rank: int) -> dict[str, Any]:
    """Return strides, dilations, pads and auto_pad of a convolution or pool as for a 2-D op.

    rank: number of spatial dimensions in the file.
    """
    attributes = {name: node.attribute(name) or (1,) * rank for name in ("strides", "dilations")}
    pads = node.attribute("pads") or (0,) * (2 * rank)
    auto_pad = node.only("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    lengths = {"strides": rank, "dilations": rank, "pads": 2 * rank}
    attributes["pads"] = pads if auto_pad == "NOTSET" else (0,) * (2 * rank)
    for name, length in lengths.items():
        if len(attributes[name]) != length:
            raise node.error(f"attribute {name} is {list(attributes[name])}, expected {length} "
                             "numbers")
    if min(*attributes["strides"], *attributes["dilations"]) < 1:
        raise node.error(f"strides {list(attributes['strides'])} and dilations "
                         f"{list(attributes['dilations'])} must be at least 1")
    if any(pad < 0 for pad in attributes["pads"]):
        raise node.unsupported(f"attribute pads is {list(pads)}, expected numbers of 0 or more")
    if rank == 1:
        attributes["strides"] = (1, *attributes["strides"])
        attributes["dilations"] = (1, *attributes["dilations"])
        attributes["pads"] = (0, attributes["pads"][0], 0, attributes["pads"][1])
    if auto_pad.startswith("SAME"):
        attributes["auto_pad"] = auto_pad
    return attributes


def _emit_2d(node: OnnxNode, is_1d: bool, op: str, inputs: list[str], *,
             columns: int | None = None, **attributes: Any) -> None:
    """Emit a 2-D op.

    For a 1-D op of the file, a dimension of size 1 is inserted before the op and removed after it.

    columns: for a 3-D op, the last size, with which the dimension before it is merged meanwhile.
    """
    if columns:
        flat = node.emit("reshape", [inputs[0]], "lifted", shape=(0, 0, 0, -1))
    elif is_1d:
        flat = node.emit("unsqueeze", [inputs[0]], "lifted", axes=(2,))
    else:
        node.emit(op, inputs, **attributes)
        return
    result = node.emit(op, [flat, *inputs[1:]], "lifted_result", **attributes)
    if columns:
        node.emit("reshape", [result], shape=(0, 0, 0, -1, columns))
    else:
        node.emit("squeeze", [result], axes=(2,))
    # the layer, not the last node, gets the name of the file's node
    layer, last = node.graph.nodes[-2:]
    layer.name, last.name = last.name, layer.name


def _weight(node: OnnxNode) -> tuple[np.ndarray, bool]:
    """Return the weight of a convolution, and whether the convolution is 1-D."""
    weight = node.constant(1, "the weight")
    is_1d = _is_1d(node, weight.ndim - 2)
    _check_kernel(node, weight)
    return weight, is_1d


def _check_kernel(node: OnnxNode, weight: np.ndarray) -> None:
    """Raise ModelError if the kernel_shape of a convolution differs from that of its weight."""
    kernel = node.attribute("kernel_shape", weight.shape[2:])
    if tuple(kernel) != weight.shape[2:]:
        raise node.error(f"kernel_shape is {list(kernel)} but the weight is {list(weight.shape)}")


def convolution_attributes(node: OnnxNode, weight: np.ndarray) -> dict[str, Any]:
    """Return the attributes of conv2d for a convolution of a file, except the epilogue."""
    _check_kernel(node, weight)
    groups = node.attribute("group", 1)
    if groups < 1 or weight.shape[0] % groups:
        raise node.error(f"{weight.shape[0]} filters do not divide into {groups} groups")
    return {"groups": groups, **_window(node, weight.ndim - 2)}


def bias_of(node: OnnxNode, index: int, channels: int) -> str:
    """Return the name of the bias, which must have one value per channel."""
    bias = node.constant(index, "the bias")
    if bias.shape != (channels,):
        raise node.error(f"bias {quoted(node.input(index))} has shape {list(bias.shape)}, expected "
                         f"[{channels}]")
    return node.input(index)


def _conv(node: OnnxNode) -> None:
    weight = node.constant(1, "the weight")
    columns = _columns(node) if weight.shape[4:] == (1,) else None
    is_1d = columns is None and _is_1d(node, weight.ndim - 2)
    attributes = convolution_attributes(node, weight)
    inputs = [node.required(0), node.required(1)]
    if columns:
        attributes |= _of_single_columns(node, attributes, columns)
        inputs[1] = node.add_constant(weight[..., 0], "weight")
    if is_1d:
        inputs[1] = node.add_constant(weight[:, :, None], "weight")
    epilogue = identity()
    if node.input(2):
        inputs.append(bias_of(node, 2, weight.shape[0]))
        epilogue = apply("add")
    _emit_2d(node, is_1d, "conv2d", inputs, columns=columns, epilogue=epilogue, **attributes)


def _columns(node: OnnxNode) -> int | None:
    """Return the last size of a 3-D input; None if it is 0 or depends on the inputs' sizes."""
    probes = [node.integers.probe]
    if not probes[0].is_only_size:
        probes.append(Probe(node.graph, **OTHER_SIZES))
        probes[1].add(node.graph.nodes)
    shapes = [probe.shape(node.required(0)) for probe in probes]
    sizes = {shape[-1] if shape and len(shape) == 5 else None for shape in shapes}
    return sizes.pop() or None if len(sizes) == 1 else None


def _of_single_columns(node: OnnxNode, attributes: dict[str, Any], columns: int) -> dict[str, Any]:
    """Return the strides, dilations and pads of a 3-D convolution whose window has one column.

    The last two dimensions become one, in which the taps of a window are as far apart as a row has
    columns.
    """
    (*strides, across), (*dilations, _) = attributes["strides"], attributes["dilations"]
    top, left, before, bottom, right, after = attributes["pads"]
    if (strides[1], across, before, after) != (1, 1, 0, 0) or "auto_pad" in attributes:
        raise node.unsupported("has 3 spatial dimensions, and strides or pads along the last two; "
                               "gossamer computes 1 or 2")
    return {"strides": tuple(strides), "dilations": (dilations[0], dilations[1] * columns),
            "pads": (top, left * columns, bottom, right * columns)}


def _conv_transpose(node: OnnxNode) -> None:
    weight, is_1d = _weight(node)
    rank = weight.ndim - 2
    groups = node.attribute("group", 1)
    if groups < 1 or weight.shape[0] % groups:
        raise node.error(f"{weight.shape[0]} input channels do not divide into {groups} groups")
    window = _window(node, rank)
    output_padding = node.attribute("output_padding") or (0,) * rank
    window["output_padding"] = (0,) * (2 - rank) + tuple(output_padding)
    output_shape = node.attribute("output_shape")
    if output_shape:
        window["output_shape"] = (1,) * (2 - rank) + tuple(output_shape[-rank:])
    inputs = [node.required(0), node.required(1)]
    if is_1d:
        inputs[1] = node.add_constant(weight[:, :, None], "weight")
    if node.input(2):
        inputs.append(bias_of(node, 2, weight.shape[1] * groups))
    _emit_2d(node, is_1d, "conv_transpose2d", inputs, groups=groups, **window)


def _pool(node: OnnxNode, kind: str) -> None:
    node.only_first_output()
    kernel = node.attribute("kernel_shape")
    if not kernel:
        raise node.error("attribute kernel_shape is missing")
    is_1d = _is_1d(node, len(kernel))
    window = _window(node, len(kernel))
    node.attribute("storage_order")
    count = bool(node.attribute("count_include_pad", 0)) if kind == "average" else False
    _emit_2d(node, is_1d, "pool", [node.required(0)], kind=kind,
            kernel=(1,) * (2 - len(kernel)) + tuple(kernel),
            ceil_mode=bool(node.attribute("ceil_mode", 0)), count_include_pad=count, **window)


def _global_pool(node: OnnxNode, kind: str) -> None:
    node.emit("reduce", [node.required(0)], kind=kind, axes="spatial", keepdims=True)


def _axes(node: OnnxNode) -> tuple[list[str], dict[str, Any], bool]:
    """Return the inputs of a reduction, its attributes, and whether it is the identity.

    The axes are an attribute before opset 18 (13 for ReduceSum), and an input from this opset on.
    An empty list of axes means the same as no list. A reduction without axes may be the identity.
    """
    inputs, attributes = [node.required(0)], {"axes": node.attribute("axes") or None}
    without_axes_is_identity = bool(node.attribute("noop_with_empty_axes", 0))
    if node.input(1):
        axes = node.optional_constant(1)
        if axes is None and without_axes_is_identity:
            raise node.unsupported("has noop_with_empty_axes 1 and axes that are not constant; "
                                   "export it with constant axes")
        if axes is None or axes.size:
            inputs.append(node.input(1))
    is_identity = without_axes_is_identity and len(inputs) == 1 and attributes["axes"] is None
    return inputs, attributes, is_identity


def _reduce(node: OnnxNode, kind: str, before: str = "", after: str = "") -> None:
    """Convert a reduction.

    before: name of the function applied to each element before the reduction; "mul" squares the
    element.
    after: name of the function applied to the result.
    """
    inputs, attributes, is_identity = _axes(node)
    keepdims = bool(node.attribute("keepdims", 1))
    if is_identity:
        if before != after:
            raise node.unsupported("has no axes and noop_with_empty_axes 1; export it with axes")
        node.emit("identity", inputs)
        return
    if before:
        value = Composer().operand(inputs[0])
        value = value * value if before == "mul" else value.apply(before)
        inputs[0] = node.emit_expression(value, "terms")
    reduced = node.emit("reduce", inputs, "reduced" if after else None, kind=kind,
                        keepdims=keepdims, **attributes)
    if after:
        node.emit_elementwise(apply(after), [reduced])


def _log_sum_exp(node: OnnxNode) -> None:
    """Convert ReduceLogSumExp.

    The greatest element, if finite, is subtracted before the exponential and added to the result
    afterwards, so that the exponential cannot overflow.
    """
    inputs, attributes, is_identity = _axes(node)
    if is_identity:
        raise node.unsupported("has no axes and noop_with_empty_axes 1; export it with axes")
    keepdims = bool(node.attribute("keepdims", 1))
    most = node.emit("reduce", inputs, "most", kind="max", keepdims=True, **attributes)
    value = Composer().operand(most)
    is_finite = (value - value).apply("equal", 0)
    shift = node.emit_expression(is_finite.apply("where", value, 0), "shift")
    value = Composer().operand(inputs[0]) - shift
    powers = node.emit_expression(value.apply("exp"), "powers")
    sums, shifts = (node.emit("reduce", [name, *inputs[1:]], role, kind="sum", keepdims=keepdims,
                              **attributes)
                    for name, role in ((powers, "sums"), (shift, "shifts")))
    node.emit_expression(Composer().operand(sums).apply("log") + shifts)


def _gemm(node: OnnxNode) -> None:
    """Convert Gemm.

    The attribute alpha is multiplied into B if B is constant, else it becomes part of the epilogue.
    The attribute beta is multiplied into C if C is constant. A constant C with one value per column
    becomes the bias. Any other C is added in a separate node; if C is not constant, this node also
    multiplies it by beta.
    """
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    trans_a, trans_b = bool(node.attribute("transA", 0)), bool(node.attribute("transB", 0))
    inputs = [node.required(0), node.required(1)]
    b, c = node.optional_constant(1), node.optional_constant(2)
    product, epilogue = "", identity()
    if alpha != 1 and b is not None:
        inputs[1] = node.add_constant((b.astype(np.float64) * alpha).astype(b.dtype), "b")
    elif alpha != 1:
        composer = Composer()
        scaled = composer.operand("") * alpha
        epilogue = composer.build(scaled, first="")[1]
    addend = node.input(2) if beta != 0 else ""
    if c is not None and beta not in (0, 1):
        addend = node.add_constant((c.astype(np.float64) * beta).astype(c.dtype), "c")
    columns = b.shape[0 if trans_b else 1] if b is not None and b.ndim == 2 else None
    if addend and c is not None and c.size == columns and c.shape[-1:] == (columns,):
        if c.ndim != 1:
            addend = node.add_constant(node.graph.constants[addend].reshape(-1), "bias")
        inputs.append(addend)
        epilogue = epilogue.then(apply("add"))
        addend = ""
    product = node.emit("gemm", inputs, "product" if addend else None, trans_a=trans_a,
                        trans_b=trans_b, epilogue=epilogue)
    if addend:
        composer = Composer()
        value = composer.operand(addend)
        if c is None and beta != 1:
            value = value * beta
        node.emit_expression(composer.operand(product) + value)


def _matmul(node: OnnxNode) -> None:
    node.emit("matmul", [node.required(0), node.required(1)])


def _batch_norm(node: OnnxNode) -> None:
    """Convert BatchNormalization.

    With training_mode, the op normalises by the statistics of its input. The op's second and third
    outputs are weighted means of these statistics and the stored statistics.
    """
    node.only("spatial", 1)
    training = bool(node.only("training_mode", 0, 1))
    momentum = node.attribute("momentum", 0.9)
    if not training:
        node.only_first_output()
    names = ("scale", "bias", "mean", "variance")
    arrays = [node.constant(index, what) for index, what in enumerate(names, start=1)]
    for name, array in zip(names, arrays, strict=True):
        if array.shape != arrays[0].shape or array.ndim != 1:
            raise node.error(f"{name} has shape {list(array.shape)}, expected "
                             f"[{arrays[0].size}]")
    inputs = [node.required(index) for index in range(5)]
    epsilon = node.attribute("epsilon", 1e-5)
    if not training:
        node.emit("batch_norm", inputs, epsilon=epsilon)
        return
    outputs = [*node.outputs, "", ""][:3]
    for index, role in ((1, "mean"), (2, "variance")):
        outputs[index] = outputs[index] or node.new_name(role)
    node.emit("batch_norm_training", inputs, outputs, epsilon=epsilon, momentum=momentum)


def _softmax(node: OnnxNode, log: bool) -> None:
    """Convert Softmax and LogSoftmax.

    Before opset 13, both ops treat all dimensions from the axis on as one dimension.
    """
    old = node.opset < 13
    node.emit("softmax", [node.required(0)], axis=node.attribute("axis", 1 if old else -1),
              log=log, flatten=old)


def _standardised(node: OnnxNode, x: str, axes: int | str) -> Value:
    """Emit the mean and the variance of x, and return (x - mean) / sqrt(variance + epsilon).

    axes: "spatial", or the index of an axis, which means this axis and all later ones.
    """
    mean = node.emit("reduce", [x], "mean", kind="mean", axes=axes, keepdims=True)
    centred = node.emit("elementwise", [x, mean], "centred", expression=apply("sub"))
    return _over_deviation(node, centred, axes)


def _over_deviation(node: OnnxNode, x: str, axes: int | str) -> Value:
    """Emit the mean of x * x, the variance, and return x / sqrt(variance + epsilon)."""
    value = Composer().operand(x)
    squares = node.emit_expression(value * value, "squares")
    variance = node.emit("reduce", [squares], "variance", kind="mean", axes=axes, keepdims=True)
    composer = Composer()
    epsilon = composer.constant(node.attribute("epsilon", 1e-5))
    deviation = (composer.operand(variance) + epsilon).apply("sqrt")
    return composer.operand(x) / deviation


def _emitted_as_one(node: OnnxNode, *, centred: bool) -> bool:
    """Emit a layer norm or RMS norm as one node if possible, and return whether this was possible.

    One node is not possible if the scale or the bias depends on the data. It is not possible either
    if axis 0 is normalised, because the scale would then be broadcast along the batch.
    """
    x, scale, axis = node.required(0), node.optional_constant(1), node.attribute("axis", -1)
    if axis == 0 or scale is None or (node.input(2) and node.optional_constant(2) is None):
        return False
    bias = node.input(2) or node.add_constant(np.zeros_like(scale), "bias_0")
    node.emit("layer_norm", [x, node.required(1), bias], axes=axis,
              epsilon=node.attribute("epsilon", 1e-5), centred=centred)
    return True


def _layer_norm(node: OnnxNode) -> None:
    node.only("stash_type", 1)
    node.only_first_output()
    if _emitted_as_one(node, centred=True):
        return
    value = _standardised(node, node.required(0), node.attribute("axis", -1))
    value = value * node.required(1)
    if node.input(2):
        value = value + node.input(2)
    node.emit_expression(value)


def _rms_norm(node: OnnxNode) -> None:
    """Convert RMSNormalization: x / sqrt(mean(x * x) + epsilon) * scale."""
    node.only("stash_type", 1)
    if _emitted_as_one(node, centred=False):
        return
    value = _over_deviation(node, node.required(0), node.attribute("axis", -1))
    node.emit_expression(value * node.required(1))


def _scaled(node: OnnxNode, x: str, outputs: str | None) -> str:
    """Emit x * scale + bias, where scale and bias are the node's inputs 1 and 2.

    Scale and bias have one value per channel. The new node is a batch norm with mean 0 and variance
    1, which accepts x of any rank.
    """
    scale, bias = node.constant(1, "scale"), node.constant(2, "bias")
    if scale.ndim != 1 or scale.shape != bias.shape:
        raise node.error(f"scale has shape {list(scale.shape)} and bias {list(bias.shape)}, "
                         "expected one value for each channel")
    mean = node.add_constant(np.zeros_like(scale), "mean_0")
    variance = node.add_constant(np.ones_like(scale), "variance_1")
    return node.emit("batch_norm", [x, *node.inputs[1:3], mean, variance], outputs, epsilon=0.0)


def _instance_norm(node: OnnxNode) -> None:
    value = _standardised(node, node.required(0), "spatial")
    _scaled(node, node.emit_expression(value, "standardised"), None)


def _group_norm(node: OnnxNode) -> None:
    """Convert GroupNormalization.

    Scale and bias have one value per group in opset 18, and one per channel from opset 21 on.
    """
    node.only("stash_type", 1)
    x, groups = node.required(0), node.attribute("num_groups")
    if not groups or groups < 1:
        raise node.error("attribute num_groups is missing or less than 1")
    is_per_group = node.opset < 21
    if not is_per_group and (channels := node.constant(1, "scale").size) % groups:
        raise node.error(f"num_groups is {groups}, which does not divide the {channels} channels "
                         "of its scale")
    grouped = node.emit("reshape", [x], "grouped", shape=(0, groups, -1))
    value = _standardised(node, grouped, "spatial")
    result = node.emit_expression(value, "standardised")
    if is_per_group:
        result = _scaled(node, result, "scaled")
    shape = node.emit("shape", [x], "shape", start=0, end=None)
    result = node.emit("reshape", [result, shape], None if is_per_group else "ungrouped")
    if not is_per_group:
        _scaled(node, result, None)


LAYERS: dict[str, Converter] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul,
    "BatchNormalization": _batch_norm,
    "MaxPool": partial(_pool, kind="max"), "AveragePool": partial(_pool, kind="average"),
    "GlobalMaxPool": partial(_global_pool, kind="max"),
    "GlobalAveragePool": partial(_global_pool, kind="mean"),
    "ReduceMean": partial(_reduce, kind="mean"), "ReduceMax": partial(_reduce, kind="max"),
    "ReduceSum": partial(_reduce, kind="sum"),
    "ReduceL1": partial(_reduce, kind="sum", before="abs"),
    "ReduceL2": partial(_reduce, kind="sum", before="mul", after="sqrt"),
    "ReduceSumSquare": partial(_reduce, kind="sum", before="mul"),
    "ReduceLogSum": partial(_reduce, kind="sum", after="log"), "ReduceLogSumExp": _log_sum_exp,
    "ReduceMin": partial(_reduce, kind="max", before="neg", after="neg"),
    "Softmax": partial(_softmax, log=False), "LogSoftmax": partial(_softmax, log=True),
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "RMSNormalization": _rms_norm,
}
