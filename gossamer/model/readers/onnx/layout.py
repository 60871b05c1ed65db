"""Converters of ONNX's ops that move, repeat, select or sort data, or compute shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gossamer.model.readers.onnx.node import Converter, OnnxNode


def _concat(node: OnnxNode) -> None:
    axis = node.attribute("axis")
    if axis is None:
        raise node.error("attribute axis is missing")
    node.emit("concat", [node.required(i) for i in range(len(node.inputs))], axis=axis)


def _split(node: OnnxNode) -> None:
    inputs = [node.required(0)]
    attributes = {"sizes": node.attribute("split") or None}
    if node.input(1):
        inputs.append(node.input(1))
    node.attribute("num_outputs")
    node.emit("split", inputs, node.outputs, axis=node.attribute("axis", 0), **attributes)


def _slice(node: OnnxNode) -> None:
    """Convert Slice. The bounds are attributes before opset 10, and inputs from opset 10 on."""
    if node.opset < 10:
        bounds = {name: node.attribute(name) for name in ("starts", "ends", "axes")}
        if bounds["starts"] is None or bounds["ends"] is None:
            raise node.error("attributes starts and ends are missing")
        node.emit("slice", [node.required(0)], **{k: v for k, v in bounds.items() if v is not None})
    else:
        node.emit("slice", [node.required(i) if i < 3 else node.input(i)
                            for i in range(len(node.inputs))])


def _reshape(node: OnnxNode) -> None:
    attributes: dict[str, Any] = {"allowzero": True} if node.attribute("allowzero", 0) else {}
    node.emit("reshape", [node.required(0), node.required(1)], **attributes)


def _blocks(node: OnnxNode) -> None:
    """Convert DepthToSpace and SpaceToDepth."""
    attributes: dict[str, Any] = {"block": node.attribute("blocksize")}
    if attributes["block"] is None:
        raise node.error("attribute blocksize is missing")
    if node.op == "DepthToSpace":
        attributes["mode"] = node.only("mode", "DCR", "CRD")
        node.emit("depth_to_space", [node.required(0)], **attributes)
    else:
        node.only("mode", "DCR")
        node.emit("space_to_depth", [node.required(0)], **attributes)


def _squeeze(node: OnnxNode) -> None:
    """Convert Squeeze and Unsqueeze. Before opset 13, the axes are an attribute.

    A Squeeze without axes, or with an empty list of axes, removes all dimensions of size 1.
    """
    inputs = [node.required(0), *([node.input(1)] if node.input(1) else [])]
    axes = node.attribute("axes")
    if node.op == "Squeeze":
        axes = axes or None
    if node.op == "Unsqueeze" and axes is None and len(inputs) == 1:
        raise node.error("its axes are missing")
    attributes = {} if axes is None else {"axes": axes}
    node.emit(node.op.lower(), inputs, **attributes)


def _pad(node: OnnxNode) -> None:
    """Convert Pad. From opset 11 on, all parameters except the mode are inputs."""
    attributes = {"mode": node.only("mode", "constant", "reflect", "edge")}
    inputs = [node.required(0)]
    if node.opset < 11:
        attributes["pads"] = node.attribute("pads")
        if attributes["pads"] is None:
            raise node.error("attribute pads is missing")
        attributes["value"] = node.attribute("value", 0.0)
    else:
        inputs += [node.required(1), *node.inputs[2:]]
    node.emit("pad", inputs, **attributes)


def _resize(node: OnnxNode) -> None:
    """Convert Resize and Upsample.

    Upsample and the Resize of opset 10 have scales only, and measure coordinates from the image's
    corner. The scales of Upsample are an attribute before opset 9. The Resize of opset 10 rounds
    coordinates down when it enlarges, and up when it shrinks.
    """
    is_old = node.op == "Upsample" or node.opset < 11
    mode = node.only("mode", "nearest", "linear", "bilinear", *(() if is_old else ("cubic",)))
    attributes = {"mode": "linear" if mode == "bilinear" else mode}
    if is_old:
        attributes["coordinates"] = "asymmetric"
        attributes["nearest_mode"] = "floor" if node.op == "Upsample" else "simple"
        if node.op == "Upsample" and node.opset < 9:
            scales = node.attribute("scales")
            if not scales:
                raise node.error("attribute scales is missing")
            node.emit("resize", [node.required(0)], scales=tuple(scales), sizes=None, **attributes)
            return
        node.emit("resize", [node.required(0), node.required(1)], **attributes)
        return
    attributes["coordinates"] = node.only("coordinate_transformation_mode", "half_pixel",
                                          "half_pixel_symmetric", "pytorch_half_pixel",
                                          "align_corners", "asymmetric")
    attributes["nearest_mode"] = node.only("nearest_mode", "round_prefer_floor",
                                           "round_prefer_ceil", "floor", "ceil")
    antialias = bool(node.only("antialias", 0, 1)) and mode != "nearest"
    node.only("keep_aspect_ratio_policy", "stretch")
    node.attribute("extrapolation_value")
    linearly = {"antialias": antialias,
                "cubic_coefficient": node.attribute("cubic_coeff_a", -0.75),
                "exclude_outside": bool(node.attribute("exclude_outside", 0))}
    axes = node.attribute("axes")
    if axes is not None:
        attributes["axes"] = axes
    inputs = [node.input(i) for i in (2, 3)]
    inputs = [name if node.graph.constants.get(name, np.ones(1)).size else "" for name in inputs]
    if not any(inputs):
        raise node.error("needs scales or sizes")
    if mode == "cubic" or antialias:
        del attributes["nearest_mode"]
        node.emit("resize_linearly", [node.required(0), *inputs], **attributes, **linearly)
    else:
        node.emit("resize", [node.required(0), *inputs], **attributes)


def _dropout(node: OnnxNode) -> None:
    node.attribute("ratio")
    node.attribute("seed")
    training = node.input(2) and node.constant(2, "training_mode").any()
    if training:
        raise node.unsupported("training_mode is true; export the model for inference")
    node.only_first_output()
    node.emit("identity", [node.required(0)])


def _shape(node: OnnxNode) -> None:
    node.emit("shape", [node.required(0)], start=node.attribute("start", 0),
              end=node.attribute("end"))


def _constant_of_shape(node: OnnxNode) -> None:
    value = node.attribute("value", np.zeros(1, np.float32))
    node.emit("constant_of_shape", [node.required(0)], value=value.reshape(()))


def _range(node: OnnxNode) -> None:
    # read but not used: the dtype of intermediate values in ONNX, which are float32 in gossamer
    node.attribute("stash_type")
    node.emit("range", [node.required(i) for i in range(3)])


def _trilu(node: OnnxNode) -> None:
    node.emit("triangle", [node.required(0), *filter(None, [node.input(1)])],
              upper=bool(node.attribute("upper", 1)))


def _scatter_nd(node: OnnxNode) -> None:
    node.only("reduction", "none")
    node.emit("scatter_nd", [node.required(i) for i in range(3)])


def _scatter_elements(node: OnnxNode) -> None:
    """Convert ScatterElements, which was named Scatter before opset 11."""
    node.only("reduction", "none")
    node.emit("scatter_elements", [node.required(i) for i in range(3)],
              axis=node.attribute("axis", 0))


def _arg_first(node: OnnxNode) -> None:
    """Convert ArgMax and ArgMin.

    The result is the index of the greatest or least element, or of a NaN if there is one.
    """
    axis = node.attribute("axis", 0)
    keeps = bool(node.attribute("keepdims", 1))
    indices = node.outputs[0] if keeps else node.new_name("place")
    node.emit("top_k", [node.required(0)], [node.new_name("first"), indices], axis=axis, count=(1,),
              largest=node.op == "ArgMax", nan_first=True,
              last=bool(node.attribute("select_last_index", 0)))
    if not keeps:
        node.emit("squeeze", [indices], axes=(axis,))


def _top_k(node: OnnxNode) -> None:
    """Convert TopK. The number of elements is an attribute before opset 10."""
    inputs, attributes = [node.required(0)], {}
    if node.opset < 10:
        count = node.attribute("k")
        if count is None:
            raise node.error("attribute k is missing")
        attributes["count"] = (count,)
    else:
        inputs.append(node.required(1))
    node.attribute("sorted")  # if the file allows any order, sorted elements are right too
    values, indices = [*node.outputs, ""][:2]
    node.emit("top_k", inputs, [values, indices or node.new_name("indices")],
              axis=node.attribute("axis", -1), largest=bool(node.attribute("largest", 1)),
              **attributes)


def _cum_sum(node: OnnxNode) -> None:
    axis = node.constant(1, "the axis")
    node.emit("sums_up_to", [node.required(0)], axis=int(axis.item()),
              exclusive=bool(node.attribute("exclusive", 0)),
              reverse=bool(node.attribute("reverse", 0)))


def _renamed(op: str, inputs: int, **attributes: tuple[str, Any]) -> Converter:
    """Return the converter of an operator that differs from gossamer's op only in its names.

    op: name of gossamer's op.
    inputs: number of inputs.
    attributes: for each attribute of gossamer's op, the attribute's name and default in ONNX.
    """
    def convert(node: OnnxNode) -> None:
        node.emit(op, [node.required(index) for index in range(inputs)], **{
            ours: node.attribute(*theirs) for ours, theirs in attributes.items()})

    return convert


LAYOUT: dict[str, Converter] = {
    "Concat": _concat, "Split": _split, "Slice": _slice, "Reshape": _reshape,
    "Transpose": _renamed("transpose", 1, permutation=("perm", None)),
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
    "Flatten": _renamed("flatten", 1, axis=("axis", 1)), "Squeeze": _squeeze, "Unsqueeze": _squeeze,
    "Expand": _renamed("expand", 2), "Pad": _pad, "Resize": _resize, "Upsample": _resize,
    "Identity": _renamed("identity", 1), "Dropout": _dropout, "Shape": _shape,
    "Size": _renamed("size", 1), "ConstantOfShape": _constant_of_shape, "Range": _range,
    "Gather": _renamed("gather", 2, axis=("axis", 0)),
    "GatherND": _renamed("gather_nd", 2, batch_dims=("batch_dims", 0)),
    "GatherElements": _renamed("gather_elements", 2, axis=("axis", 0)),
    "ScatterND": _scatter_nd, "ScatterElements": _scatter_elements, "Scatter": _scatter_elements,
    "Tile": _renamed("tile", 2), "Trilu": _trilu, "ArgMax": _arg_first, "ArgMin": _arg_first,
    "TopK": _top_k, "CumSum": _cum_sum,
}
