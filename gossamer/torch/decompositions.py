"""Operators that torch's ONNX exporter cannot write for all arguments, or writes as a network at
which ONNX Runtime ends the process, in terms of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gossamer.errors import UnsupportedError

_aten = torch.ops.aten


def decomposed(program: Any) -> Any:
    """Returns a program of torch.export without the operators that the exporter may not write. It
    is the program itself where it has none of them, or reads results that are not computed here."""
    for node in list(program.graph.nodes):
        if node.target in _BAGS:
            _write_bags(program, node)
    found = [node for node in program.graph.nodes if node.target in _TABLE]
    if not found or any(_reads_places(node) for node in found):
        return program
    return program.run_decompositions(_TABLE)


def _write_bags(program: Any, node: Any) -> None:
    """Replaces the sums, means or maxima over bags of rows by those over one axis. torch's exporter
    writes a loop, at which ONNX Runtime (seen with 1.32) ends the process. Raises UnsupportedError
    where bags differ in length, or some of their rows do not count."""
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
                               "a loop that crashes ONNX Runtime; take nn.Embedding and sums")
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


def _reads_places(node: Any) -> bool:
    """Whether a program reads the places of the maxima, the second result of a pooling."""
    return node.target in _MAXIMA and any(
        reader.args[1] == 1 and reader.users for reader in node.users)


def _adaptive_max_pool(x: torch.Tensor, output_size: Sequence[int]
                       ) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the maxima over windows that cover the last axes, as many along each as output_size
    says, as torch.nn.AdaptiveMaxPool2d does; and zeros in place of the places of the maxima."""
    y = _over_windows(torch.amax, x, output_size)
    return y, torch.zeros_like(y, dtype=torch.int64)


def _adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[int]) -> torch.Tensor:
    """Returns the means over windows that cover the last axes, as torch.nn.AdaptiveAvgPool3d
    does."""
    return _over_windows(torch.mean, x, output_size)


def _over_windows(reduced: Callable[[torch.Tensor, int], torch.Tensor], x: torch.Tensor,
                  output_size: Sequence[int]) -> torch.Tensor:
    """Returns a tensor whose last axes are reduced, one after the other. Window i of an axis begins
    at the largest integer that is not above i * size / count, and ends at the smallest one that is
    not below (i + 1) * size / count."""
    for axis, count in enumerate(output_size, x.dim() - len(output_size)):
        size = x.shape[axis]
        if size % count == 0:
            x = reduced(x.unflatten(axis, (count, size // count)), axis + 1)
        else:
            windows = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            x = torch.stack([reduced(x.narrow(axis, start, end - start), axis)
                             for start, end in windows], axis)
    return x


_BAGS = (_aten.embedding_bag.padding_idx, _aten.embedding_bag.default)
_MAXIMA = (_aten.adaptive_max_pool1d.default, _aten.adaptive_max_pool2d.default,
           _aten.adaptive_max_pool3d.default)
_TABLE = {**dict.fromkeys(_MAXIMA, _adaptive_max_pool),
          _aten.adaptive_avg_pool3d.default: _adaptive_avg_pool}
"""The table has, for each operator of torch, the function that computes it."""
