"""Rewrites before and after torch's ONNX export.

Before the export, this module replaces three kinds of operators: those that the exporter cannot
write for all arguments, those of which it ignores an argument, and those whose exported nodes would
crash ONNX Runtime. After the export, Split and Cast replace SplitToSequence and CastLike, and
interpolations are corrected to compute as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
import torch

from gossamer.errors import UnsupportedError
from gossamer.model.graph import Graph

Sizes = tuple[tuple[int, ...], tuple[float, ...] | None]
"""Output sizes of an interpolation, and its scale factors. The factors are None if forward passes
none."""
_aten = torch.ops.aten
_BAGS = (_aten.embedding_bag.padding_idx, _aten.embedding_bag.default)
_AVERAGE_POOLS = (_aten.avg_pool2d.default, _aten.avg_pool3d.default)
_EXTREMA = (_aten.amax.default, _aten.amin.default)
_SQUEEZES = (_aten.squeeze.default, _aten.squeeze.dim, _aten.squeeze.dims)
_MAXIMA = (_aten.adaptive_max_pool1d.default, _aten.adaptive_max_pool2d.default,
           _aten.adaptive_max_pool3d.default)


def decomposed(program: Any) -> Any:
    """Return a program without operators that the exporter may not support.

    The program itself is returned if it has none of these operators. Max poolings stay if the
    program reads their indices, which the replacements do not compute.
    """
    for node in list(program.graph.nodes):
        if node.target in _BAGS:
            _write_bags(program, node)
        if node.target in _AVERAGE_POOLS and node.args[6:7] not in ((), (None,)):
            _write_divisor(program, node)
        if node.target in _EXTREMA and node.args[1:2] in ((), ([],)):
            # the exporter writes none over all axes
            axes = list(range(node.args[0].meta["val"].dim()))
            node.args = (node.args[0], axes, *node.args[2:])
        if node.target == _aten.adaptive_avg_pool2d.default and all(
                size == 1 for size in node.args[1]):
            # torch restrides means of channels-last images, which the exporter writes as a gather
            node.target, node.args = _aten.mean.dim, (node.args[0], [-2, -1], True)
    table = _TABLE
    if any(_reads_positions(node) for node in program.graph.nodes):
        table = {operator: form for operator, form in _TABLE.items() if operator not in _MAXIMA}
    found = any(node.target in table for node in program.graph.nodes)
    return program.run_decompositions(table) if found else program


def write_squeezes(program: Any) -> None:
    """Replace squeezes in place by squeezes of the axes that have length 1 in every batch.

    torch squeezes no axis of another length, but the exporter writes all axes that are named.
    """
    for node in program.graph.nodes:
        if node.target not in _SQUEEZES:
            continue
        shape = node.args[0].meta["val"].shape
        asked = node.args[1] if len(node.args) > 1 else range(len(shape))
        named = {axis % len(shape) for axis in (
            [asked] if isinstance(asked, int) else asked)} if shape else set()
        axes = [axis for axis in sorted(named)
                if isinstance(shape[axis], int) and shape[axis] == 1]
        node.target = _aten.squeeze.dims if axes else _aten.clone.default
        node.args = (node.args[0], axes) if axes else (node.args[0],)
    program.graph_module.recompile()


def _write_bags(program: Any, node: Any) -> None:
    """Replace an embedding_bag by an embedding and a reduction.

    The reduction is a sum, mean or maximum over one axis. torch's exporter would write a loop,
    which crashes ONNX Runtime (seen with 1.32). Raises UnsupportedError if bags differ in length,
    or if their rows have weights or padding.
    """
    weight, rows, offsets, _, mode, *more = node.args
    images = rows.args[0] if rows.target is _aten.reshape.default else rows
    readers = {reader.args[1]: reader for reader in node.users if reader.users}
    regular = (offsets.target is _aten.arange.start_step and offsets.args[0] == 0
               and rows is not images and len(images.meta["val"].shape) == 2
               and offsets.args[2] == images.meta["val"].shape[1])
    row_weights, last_offset, padding = [*more[1:], None, None, None][:3]
    if not regular or set(readers) - {0} or row_weights is not None or last_offset or (
            padding is not None):
        raise UnsupportedError("embedding_bag with several lengths, weights or padding_idx becomes "
                               "a loop that crashes ONNX Runtime; use nn.Embedding and sums")
    graph = program.graph

    def inserted(target: Any, first: Any, second: Any) -> Any:
        with graph.inserting_before(node):
            made = graph.call_function(target, (first, second))
        made.meta.update(node.meta, val=target(
            first.meta["val"], second if isinstance(second, list) else second.meta["val"]))
        return made

    taken = inserted(_aten.embedding.default, weight, images)
    reduce = (_aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default)[mode]
    reduced = inserted(reduce, taken, [1])
    for reader in readers.values():
        reader.replace_all_uses_with(reduced)
    graph.eliminate_dead_code()
    program.graph_module.recompile()


def _write_divisor(program: Any, node: Any) -> None:
    """Replace an average pooling with `divisor_override` by one without, and a product.

    torch's exporter would ignore the divisor. Raises UnsupportedError with `ceil_mode`, whose last
    windows are smaller than the others.
    """
    x, kernel, stride, padding, ceil_mode, _, divisor = node.args
    if ceil_mode:
        raise UnsupportedError("average pooling with divisor_override and ceil_mode is not "
                               "supported; use ceil_mode=False, with a padded input")
    axes = 2 if node.target == _aten.avg_pool2d.default else 3
    size = math.prod(kernel) if len(kernel) > 1 else kernel[0] ** axes
    node.args = (x, kernel, stride, padding)
    with program.graph.inserting_after(node):
        scaled = program.graph.call_function(_aten.mul.Tensor, (node, size / divisor))
    scaled.meta.update(node.meta)
    node.replace_all_uses_with(scaled, lambda reader: reader is not scaled)
    program.graph_module.recompile()


def _reads_positions(node: Any) -> bool:
    """Return whether the second result of a max pooling, the indices, is read."""
    return node.target in _MAXIMA and any(
        reader.args[1] == 1 and reader.users for reader in node.users)


def _adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]
                       ) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute adaptive max pooling, as torch.nn.AdaptiveMaxPool2d does.

    Returns the maxima over output_size windows of the last axes, and zeros instead of the indices
    of the maxima.
    """
    y = _over_windows(torch.amax, x, output_size)
    return y, torch.zeros_like(y, dtype=torch.int64)


def _adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Compute means over windows of the last axes, as torch.nn.AdaptiveAvgPool3d does."""
    return _over_windows(torch.mean, x, output_size)


def _over_windows(reduced: Callable[[torch.Tensor, int], torch.Tensor], x: torch.Tensor,
                  output_size: Sequence[int]) -> torch.Tensor:
    """Reduce the windows of a tensor's last axes, axis by axis.

    Window i of an axis begins at floor(i * size / count), and ends before
    ceil((i + 1) * size / count).
    """
    for axis, count in enumerate(output_size, x.dim() - len(output_size)):
        size = x.shape[axis]
        if size % count == 0:
            x = reduced(x.unflatten(axis, (count, size // count)), axis + 1)
        else:
            windows = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            x = torch.stack([reduced(x.narrow(axis, start, end - start), axis)
                             for start, end in windows], axis)
    return x


def _log_sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute log(sigmoid(x)); the exporter's logarithm of a sigmoid is infinite for large -x."""
    return -torch.nn.functional.softplus(-x)


_TABLE = {**dict.fromkeys(_MAXIMA, _adaptive_max_pool),
          _aten.adaptive_avg_pool3d.default: _adaptive_avg_pool,
          _aten.log_sigmoid.default: _log_sigmoid}
"""Replacements of operators in decomposed()."""


def make_plain(model: Any) -> None:
    """Replace SplitToSequence by Split, and CastLike by Cast, in place.

    A SplitToSequence is replaced only if its tensors are read by constant indices, and a CastLike
    only if its target type is known. No constants are folded.

    model: an onnx_ir.Model.
    """
    from onnxscript.optimizer import fold_constants, remove_unused_nodes

    fold_constants(model, should_fold=lambda node: False)
    remove_unused_nodes(model)


def set_names(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Set the names of a model's inputs and outputs.

    The exporter names values after torch's functions. If another value already has one of the given
    names, that value is renamed.

    model: an onnx_ir.Model.
    """
    from onnx_ir.passes.common import NameFixPass

    for values, names in ((model.graph.inputs, inputs), (model.graph.outputs, outputs)):
        for value, name in zip(values, names, strict=True):
            value.name = name
    NameFixPass()(model)


def interpolations(model: onnx.ModelProto, program: Any) -> dict[str, Sizes]:
    """Return the sizes of a program's interpolations, by the names of their results."""
    resizes = [node for node in model.graph.node if node.op_type == "Resize"]
    layers = [node for node in program.graph.nodes
              if "upsample_" in str(node.target) and str(node.target).endswith(".vec")]
    if len(resizes) != len(layers):
        return {}
    found: dict[str, Sizes] = {}
    for resize, layer in zip(resizes, layers, strict=True):
        names = [argument.name for argument in layer.target._schema.arguments]
        scales = ({**dict(zip(names, layer.args, strict=False)), **layer.kwargs}
                  ).get("scale_factors")
        sizes = tuple(layer.meta["val"].shape[2:])
        if not any(isinstance(size, torch.SymInt) for size in sizes):
            found[resize.output[0]] = (sizes, tuple(scales) if scales else None)
    return found


def mark(graph: Graph, found: Mapping[str, Sizes]) -> Graph:
    """Correct a graph's interpolations in place to compute as torch does.

    found: the sizes of the interpolations, by the names of their results.
    """
    for node in graph.nodes:
        if node.op in ("resize", "resize_linearly") and node.outputs[0] in found:
            sizes, scales = found[node.outputs[0]]
            node.inputs = node.inputs[:1]
            node.attributes |= {"sizes": sizes, "scales": scales,
                                "axes": tuple(range(2, 2 + len(sizes)))}
            if node.attributes["mode"] == "nearest":
                node.attributes["coordinates"] = "pytorch_nearest"
    return graph
