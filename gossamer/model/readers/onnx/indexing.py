"""Converters of ONNX's ops that repeat, choose, replace, order or add up elements along axes."""

from __future__ import annotations

from collections.abc import Callable

from gossamer.model.readers.onnx.node import OnnxNode

Converter = Callable[[OnnxNode], None]


def _tile(node: OnnxNode) -> None:
    node.emit("tile", [node.required(0), node.required(1)])


def _trilu(node: OnnxNode) -> None:
    node.emit("triangle", [node.required(0), *filter(None, [node.input(1)])],
              upper=bool(node.attribute("upper", 1)))


def _gather_nd(node: OnnxNode) -> None:
    node.emit("gather_nd", [node.required(0), node.required(1)],
              batch_dims=node.attribute("batch_dims", 0))


def _gather_elements(node: OnnxNode) -> None:
    node.emit("gather_elements", [node.required(0), node.required(1)],
              axis=node.attribute("axis", 0))


def _scatter_nd(node: OnnxNode) -> None:
    node.only("reduction", "none")
    node.emit("scatter_nd", [node.required(i) for i in range(3)])


def _scatter_elements(node: OnnxNode) -> None:
    """Converts ScatterElements, which was named Scatter before opset 11."""
    node.only("reduction", "none")
    node.emit("scatter_elements", [node.required(i) for i in range(3)],
              axis=node.attribute("axis", 0))


def _arg_first(node: OnnxNode) -> None:
    """Converts ArgMax and ArgMin, which give the index of the greatest or least element, or of the
    first NaN."""
    axis = node.attribute("axis", 0)
    keeps = bool(node.attribute("keepdims", 1))
    output = node.outputs[0]
    places = output if keeps else f"{output}.place"
    node.emit("top_k", [node.required(0)], [f"{output}.first", places], axis=axis, count=(1,),
              largest=node.op == "ArgMax", nan_first=True,
              last=bool(node.attribute("select_last_index", 0)))
    if not keeps:
        node.emit("squeeze", [places], axes=(axis,))


def _top_k(node: OnnxNode) -> None:
    """Converts TopK, whose number of elements is an attribute before opset 10."""
    inputs, attributes = [node.required(0)], {}
    if node.opset < 10:
        count = node.attribute("k")
        if count is None:
            raise node.error("attribute k is missing")
        attributes["count"] = (count,)
    else:
        inputs.append(node.required(1))
    node.attribute("sorted")  # where the file allows any order, sorted elements are right too
    outputs = [name or f"{node.outputs[index - 1]}.{index}"
               for index, name in enumerate([*node.outputs, ""][:2])]
    node.emit("top_k", inputs, outputs, axis=node.attribute("axis", -1),
              largest=bool(node.attribute("largest", 1)), **attributes)


def _cum_sum(node: OnnxNode) -> None:
    axis = node.constant(1, "the axis")
    node.emit("sums_up_to", [node.required(0)], axis=int(axis.item()),
              exclusive=bool(node.attribute("exclusive", 0)),
              reverse=bool(node.attribute("reverse", 0)))


INDEXING: dict[str, Converter] = {
    "Tile": _tile, "Trilu": _trilu, "GatherND": _gather_nd, "GatherElements": _gather_elements,
    "ScatterND": _scatter_nd, "ScatterElements": _scatter_elements, "Scatter": _scatter_elements,
    "ArgMax": _arg_first, "ArgMin": _arg_first, "TopK": _top_k, "CumSum": _cum_sum,
}
