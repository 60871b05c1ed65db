"""Converters of ONNX's normalisations by the mean and variance of each image. A layer norm or RMS
norm with a constant scale and bias becomes one node; all other normalisations become reductions and
element-wise nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gossamer.expression import apply
from gossamer.model.compose import Composer
from gossamer.model.readers.onnx.node import OnnxNode

Converter = Callable[[OnnxNode], None]


def _standardised(node: OnnxNode, x: str, axes: int | str, composer: Composer) -> int:
    """Emits the mean and the variance of x along axes, adds (x - mean) / sqrt(variance + epsilon)
    to the expression `composer`, and returns the result's number in `composer`. axes: "spatial", or
    the number of an axis, which stands for this axis and all axes after it."""
    mean = node.emit("reduce", [x], "mean", kind="mean", axes=axes, keepdims=True)
    centred = node.emit("elementwise", [x, mean], "centred", expression=apply("sub"))
    of_squares = Composer()
    value = of_squares.operand(centred)
    squares = node.emit_expression(of_squares, of_squares.apply("mul", value, value), "squares")
    variance = node.emit("reduce", [squares], "variance", kind="mean", axes=axes, keepdims=True)
    epsilon = composer.constant(node.attribute("epsilon", 1e-5))
    deviation = composer.apply("sqrt", composer.apply("add", composer.operand(variance), epsilon))
    return composer.apply("div", composer.operand(centred), deviation)


def _emitted_as_one(node: OnnxNode, *, centred: bool) -> bool:
    """Emits a layer norm or RMS norm as one node and returns True. Emits nothing and returns False
    where the data decide the scale or the bias, or where axis 0 is normalised, since the scale is
    then broadcast along the batch."""
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
    composer = Composer()
    value = _standardised(node, node.required(0), node.attribute("axis", -1), composer)
    value = composer.apply("mul", value, composer.operand(node.required(1)))
    if node.input(2):
        value = composer.apply("add", value, composer.operand(node.input(2)))
    node.emit_expression(composer, value)


def _rms_norm(node: OnnxNode) -> None:
    """Converts RMSNormalization: x divided by the square root of the mean of its squares, times a
    scale."""
    node.only("stash_type", 1)
    if _emitted_as_one(node, centred=False):
        return
    x = node.required(0)
    of_squares = Composer()
    value = of_squares.operand(x)
    squares = node.emit_expression(of_squares, of_squares.apply("mul", value, value), "squares")
    mean = node.emit("reduce", [squares], "mean", kind="mean", axes=node.attribute("axis", -1),
                     keepdims=True)
    composer = Composer()
    epsilon = composer.constant(node.attribute("epsilon", 1e-5))
    root = composer.apply("sqrt", composer.apply("add", composer.operand(mean), epsilon))
    value = composer.apply("div", composer.operand(x), root)
    node.emit_expression(composer, composer.apply("mul", value,
                                                  composer.operand(node.required(1))))


def _scaled(node: OnnxNode, x: str, outputs: str | None) -> str:
    """Emits x times a scale plus a bias. Scale and bias have a number for each channel, and are the
    node's inputs 1 and 2. The new node is a batch norm with a mean of 0 and a variance of 1, which
    takes x of any rank."""
    scale, bias = node.constant(1, "scale"), node.constant(2, "bias")
    if scale.ndim != 1 or scale.shape != bias.shape:
        raise node.error(f"scale has shape {list(scale.shape)} and bias {list(bias.shape)}, "
                         "expected one value a channel each")
    mean = node.add_constant(np.zeros_like(scale), "mean_0")
    variance = node.add_constant(np.ones_like(scale), "variance_1")
    return node.emit("batch_norm", [x, *node.inputs[1:3], mean, variance], outputs, epsilon=0.0)


def _instance_norm(node: OnnxNode) -> None:
    composer = Composer()
    value = _standardised(node, node.required(0), "spatial", composer)
    _scaled(node, node.emit_expression(composer, value, "standardised"), None)


def _group_norm(node: OnnxNode) -> None:
    """Converts GroupNormalization, whose scale and bias have a number for each group in opset 18,
    and a number for each channel from opset 21 on."""
    node.only("stash_type", 1)
    x, groups = node.required(0), node.attribute("num_groups")
    if not groups or groups < 1:
        raise node.error("attribute num_groups is missing or less than 1")
    of_groups = node.opset < 21
    if not of_groups and (channels := node.constant(1, "scale").size) % groups:
        raise node.error(f"num_groups is {groups}, which does not divide the {channels} channels "
                         "of its scale")
    grouped = node.emit("reshape", [x], "grouped", shape=(0, groups, -1))
    composer = Composer()
    value = _standardised(node, grouped, "spatial", composer)
    result = node.emit_expression(composer, value, "standardised")
    if of_groups:
        result = _scaled(node, result, "scaled")
    shape = node.emit("shape", [x], "shape", start=0, end=None)
    result = node.emit("reshape", [result, shape], None if of_groups else "ungrouped")
    if not of_groups:
        _scaled(node, result, None)


NORMALISATIONS: dict[str, Converter] = {
    "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm, "RMSNormalization": _rms_norm,
}
